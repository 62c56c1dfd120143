"""Every problem's metrics are the field's; its loss is proven, or not, as the samples allow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problem_samples import problem, sample
from sklearn.metrics import (
    f1_score,
    jaccard_score,
    mean_absolute_error,
    mean_squared_error,
    precision_recall_fscore_support,
    r2_score,
)

from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.kinds import kinds
from gauntlet.core.signature import Signature, Task, TensorSpec
from gauntlet.datasets.golden import Golden
from gauntlet.problems import PROBLEMS, problem_of
from gauntlet.problems.accuracy_checks import accuracy_checks
from gauntlet.problems.accuracy_comparison import AccuracyLimits, compare_accuracy
from gauntlet.problems.classification import Classification

SCORED = [task for task in (*PROBLEMS, *kinds("problem")) if task not in ("arrays", "detection")]
"""Boxes are in test_detection.py."""


@pytest.mark.parametrize("task", SCORED)
def test_perfect_predictions_have_the_best_score(task: Task) -> None:
    found, (_, truth) = problem(task), sample(task, np.random.default_rng(0))
    perfect = {"embedding": lambda: np.eye(3)[truth], "ranking": lambda: truth[:, :1]}
    perfect["quantiles"] = lambda: np.stack([truth] * 3, axis=1)
    assert found.score(perfect.get(task, lambda: truth)(), truth)[found.metric] == pytest.approx(1)


@pytest.mark.parametrize("task", SCORED)
def test_score_depends_on_no_order_of_the_samples(task: Task) -> None:
    rng, found = np.random.default_rng(1), problem(task)
    outputs, truth = sample(task, rng)
    order = rng.permutation(len(truth))
    predictions = found.predictions(outputs)
    assert found.score(predictions[order], truth[order]) == pytest.approx(found.score(predictions, truth))
    assert found.score(predictions, truth)[found.metric] < 1


@given(seed=st.integers(0, 10_000))
def test_regression_scores_are_those_of_scikit_learn(seed: int) -> None:
    found, (outputs, truth) = problem("regression"), sample("regression", np.random.default_rng(seed))
    scores = found.score(found.predictions(outputs), truth)
    assert scores["r2"] == pytest.approx(r2_score(truth, outputs), abs=1e-6)
    assert scores["rmse"] == pytest.approx(np.sqrt(mean_squared_error(truth, outputs)), rel=1e-5)
    assert scores["mae"] == pytest.approx(mean_absolute_error(truth, outputs), rel=1e-5)


@given(seed=st.integers(0, 10_000))
def test_multi_label_scores_are_those_of_scikit_learn(seed: int) -> None:
    found, (outputs, truth) = problem("multi-label"), sample("multi-label", np.random.default_rng(seed), 12)
    scores, predicted = found.score(found.predictions(outputs), truth), outputs > 0
    assert scores["macro_f1"] == pytest.approx(f1_score(truth, predicted, average="macro", zero_division=1))
    assert scores["micro_f1"] == pytest.approx(f1_score(truth, predicted, average="micro", zero_division=1))


@given(seed=st.integers(0, 10_000))
def test_segmentation_score_is_that_of_scikit_learn(seed: int) -> None:
    found, (outputs, truth) = problem("segmentation"), sample("segmentation", np.random.default_rng(seed), 8)
    predicted = found.predictions(outputs)
    expected = jaccard_score(truth.ravel(), predicted.ravel(), average="macro", labels=[0, 1, 2], zero_division=0)
    assert found.score(predicted, truth)["miou"] == pytest.approx(expected)


@pytest.mark.parametrize("task", ["multi-label", "segmentation", "tagging"])
def test_scores_of_each_class_are_those_of_scikit_learn(task: Task) -> None:
    found, (outputs, truth) = problem(task), sample(task, np.random.default_rng(5), 30)
    predicted = found.predictions(outputs)
    counts = found.class_counts(predicted, truth)
    flat = (truth.ravel(), predicted.ravel()) if task != "multi-label" else (truth, predicted)
    expected = precision_recall_fscore_support(*flat, zero_division=0)[:3]
    scores = [(score.precision, score.recall, score.f1) for score in counts.scores(found.signature.labels)]
    np.testing.assert_allclose(np.transpose(scores), expected)


def test_pixels_that_are_to_be_ignored_do_not_count() -> None:
    truth = np.array([[[0, 0], [1, 255]]])
    scores = problem("segmentation").score(np.array([[[0, 0], [1, 0]]]), truth)
    assert scores == {"miou": 1.0, "pixel_accuracy": 1.0}


def test_mask_at_half_the_size_is_compared_at_the_size_of_the_truth() -> None:
    truth = np.kron(np.array([[0, 1], [2, 0]]), np.ones((2, 2), int))[None]
    assert problem("segmentation").score(np.array([[[0, 1], [2, 0]]]), truth)["miou"] == 1


@pytest.mark.parametrize("task", SCORED)
def test_loss_is_zero_against_itself_and_found_where_predictions_are_shuffled(task: Task) -> None:
    rng, found = np.random.default_rng(2), problem(task)
    outputs, truth = sample(task, rng, 200)
    before, worse = found.predictions(outputs), found.predictions(rng.permutation(outputs))
    same = found.loss(before, before, truth)
    assert (same.drop, same.low, same.high, same.verdict(0.01)) == (0, 0, 0, "proven good")
    loss = found.loss(before, worse, truth)
    assert loss.low <= loss.drop <= loss.high
    assert loss.verdict(0.05) == "proven bad"


@pytest.mark.slow
def test_interval_of_a_loss_holds_the_truth_as_often_as_it_says() -> None:
    """Both models' R² over all samples is known; the intervals from 150 of them hold its drop."""
    rng, found = np.random.default_rng(3), problem("regression", ("a",))
    truth = rng.normal(size=(100_000, 1))
    before, after = truth + rng.normal(scale=0.3, size=truth.shape), truth + rng.normal(scale=0.35, size=truth.shape)
    drop = found.score(before, truth)["r2"] - found.score(after, truth)["r2"]
    held = 0
    for start in range(0, 100 * 150, 150):
        part = slice(start, start + 150)
        loss = found.loss(before[part], after[part], truth[part])
        held += loss.low <= drop <= loss.high
    assert held >= 0.91 * 100


@pytest.mark.parametrize("task", ["regression", "multi-label", "tagging", "segmentation", "text", "embedding"])
@pytest.mark.parametrize("labelled", [True, False])
def test_gate_judges_a_candidate_by_the_problems_own_metric(task: Task, labelled: bool) -> None:
    rng = np.random.default_rng(4)
    outputs, truth = sample(task, rng, 200)
    signature, golden = problem(task).signature, Golden({}, {"y": outputs}, truth if labelled else None)
    limits = AccuracyLimits(min_sqnr_db=-100)
    for candidate, passes in ((outputs, True), (rng.permutation(outputs), False)):
        comparison = compare_accuracy(golden, signature, {"y": candidate})
        assert comparison.metric == problem(task).metric
        failed = {check.name for check in accuracy_checks(limits, comparison) if check.blocks}
        by_class = {"accuracy.max_class_drop"} if comparison.classes or task == "regression" else set()
        by_class |= {"accuracy.max_ranking_drop"} if task == "multi-label" else set()
        assert failed == (set() if passes else {"accuracy.max_accuracy_drop"} | by_class)


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_one_column_of_probabilities_is_that_of_the_second_class(shape: tuple[int, ...]) -> None:
    outputs = (TensorSpec(name="p", dtype="float32", shape=("batch", *shape[1:])),)
    signature = Signature(inputs=(), outputs=outputs, labels=("no", "yes"), primary_output="p", layout="none")
    judge, output = Classification(signature), np.float32([0.1, 0.4, 0.6, 0.9]).reshape(shape)
    predicted = judge.predictions(output)
    assert predicted is not None and predicted.tolist() == [0, 0, 1, 1]
    best = [next(iter(prediction.top)) for prediction in judge.decode({"p": output})]
    assert [(each.label, round(each.confidence or 0, 4)) for each in best[1:3]] == [("no", 0.6), ("yes", 0.6)]
    drop = judge.expected_drop({"p": output}, predicted, np.array([0, 1, 1, 1]))
    assert drop(np.ones((1, 4)))[0] == pytest.approx(0.2 / 4)  # from 0.6 to 0.4
    assert judge.predictions(output * 4 - 2) is None  # no probabilities


@pytest.mark.parametrize("scores", [[0.1, 0.3, 0.6, 0.9], [[0.9, 0.1], [0.7, 0.3], [0.4, 0.6], [0.1, 0.9]]])
def test_threshold_decides_between_two_classes(scores: list[object]) -> None:
    labels = {"labels": ("no", "yes"), "threshold": 0.2}
    judge = Classification(Signature(inputs=(), outputs=(), primary_output="p", layout="none", **labels))
    output = np.array(scores, np.float32)
    predicted = judge.predictions(output)
    assert predicted is not None and predicted.tolist() == [0, 1, 1, 1]
    best = [next(iter(prediction.top)) for prediction in judge.decode({"p": output})]
    assert [(each.label, round(each.confidence or 0, 4)) for each in best[:2]] == [("no", 0.9), ("yes", 0.3)]
    drop = judge.expected_drop({"p": output}, predicted, np.array([1, 0, 1, 1]))
    assert drop(np.ones((1, 4)))[0] == pytest.approx((0.2 + 0.2) / 4)  # 0.1 away from the threshold, twice


@pytest.mark.parametrize(("threshold", "classes"), [(None, [0, 0, 1]), (0.3, [0, 1, 1])])
def test_logit_of_two_classes_is_judged_as_its_probability(threshold: float | None, classes: list[int]) -> None:
    """Each sample by itself, too: a logit may lie between 0 and 1."""
    labels = {"labels": ("no", "yes"), "threshold": threshold, "logit": True}
    judge = Classification(Signature(inputs=(), outputs=(), primary_output="z", layout="none", **labels))
    logits = np.array([[-3.0], [-0.5], [0.4]], np.float32)
    for chosen in (slice(None), slice(0, 1), slice(1, 2), slice(2, 3)):
        predicted = judge.predictions(logits[chosen])
        assert predicted is not None and predicted.tolist() == classes[chosen]
    best = next(iter(list(judge.decode({"z": logits}))[2].top))
    assert (best.label, round(best.confidence or 0, 3)) == ("yes", 0.599)


@pytest.mark.parametrize(("task", "shape"), [("multi-label", (4, 3)), ("segmentation", (4, 1, 1, 3))])
def test_scores_of_labels_and_masks_are_read_alike_alone_and_rounded(task: Task, shape: tuple[int, ...]) -> None:
    """A request may hold logits within 0 and 1 alone, and probabilities of eight bits end a step beyond 1."""
    logits = np.array([-3, 2, 1, 0.2, 0.7, 0.4, 0.1, -0.1, 0.3, 0.6, 0.2, 0.9], np.float32).reshape(shape)
    for logit, scores in ((True, logits), (False, np.round(255 / (1 + np.exp(-logits))) * np.float32(1.002 / 255))):
        judge = problem_of(Signature(task=task, inputs=(), outputs=(), primary_output="y", logit=logit))
        whole, alone = judge.predictions(scores), [judge.predictions(row[None]) for row in scores]
        assert whole is not None and np.array_equal(whole, np.concatenate(alone))
        assert np.array_equal(whole.ravel(), logits.ravel() > 0)


def test_candidate_is_judged_at_the_threshold() -> None:
    rng = np.random.default_rng(0)
    truth = (rng.random(2000) < 0.05).astype(np.int64)
    scores = np.where(truth == 1, rng.uniform(0.2, 0.45, 2000), rng.uniform(0, 0.15, 2000)).astype(np.float32)
    halved = {"p": scores / 2}  # the same classes at 0.5, and other ones at 0.2
    for threshold, passes in ((None, True), (0.2, False)):
        labels = {"labels": ("no", "yes"), "threshold": threshold}
        signature = Signature(inputs=(), outputs=(), primary_output="p", layout="none", **labels)
        comparison = compare_accuracy(Golden({}, {"p": scores}, truth), signature, halved)
        limits = AccuracyLimits(max_accuracy_drop=0.01, min_sqnr_db=-100)
        failed = [check.name for check in accuracy_checks(limits, comparison) if check.blocks]
        assert ("accuracy.max_accuracy_drop" in failed) is not passes


def test_threshold_without_two_classes_is_refused() -> None:
    judge = Classification(Signature(inputs=(), outputs=(), primary_output="p", layout="none", threshold=0.2))
    with pytest.raises(StageError, match=r"data.threshold: p is float32\[4, 3\], no probability of two classes"):
        judge.predictions(np.zeros((4, 3), np.float32))


def test_task_that_nothing_installed_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gauntlet.problems.kinds", lambda _: {})
    signature = Signature(inputs=(), outputs=(), layout="NCHW", labels=(), task="detection")
    with pytest.raises(ConfigError, match="the task detection is unknown here"):
        problem_of(signature)
