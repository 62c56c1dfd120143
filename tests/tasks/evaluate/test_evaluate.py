"""The quality gate, on predictions whose scores are known."""

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from tasks.evaluate import EvaluateConfig, EvaluateFacts, evaluate

LABELS = ("cat", "dog", "owl")
SIGNATURE = Signature(task="classification", layout="none", inputs=(), outputs=(), labels=LABELS)
Score = Callable[..., Report[EvaluateFacts]]
TRUTH = [0] * 10 + [1] * 10 + [2] * 20


@pytest.fixture
def score(workspace: Callable[..., Workspace]) -> Score:
    def run(predictions: list[int], train_right: float = 1.0, **config: float) -> Report[EvaluateFacts]:
        out = workspace()
        train = np.zeros(100, np.int64)
        train[round(100 * train_right) :] = 1
        np.savez(
            out.folder / "predictions.npz",
            test=np.array(predictions),
            test_labels=np.array(TRUTH),
            train=train,
            train_labels=np.zeros(100, np.int64),
        )
        predictions = out.store_file(out.folder / "predictions.npz")
        return evaluate(EvaluateConfig(**config), out, predictions=predictions, signature=SIGNATURE)

    return run


def failed(report: Report[EvaluateFacts]) -> list[str]:
    return [check.name.removeprefix("evaluate.") for check in report.failures]


def test_evaluate_passes_when_every_prediction_is_right(score: Score) -> None:
    report = score(TRUTH)
    assert failed(report) == []
    assert (report.facts.accuracy, report.facts.macro_f1) == (1.0, 1.0)
    assert report.facts.confusion == ((10, 0, 0), (0, 10, 0), (0, 0, 20))


def test_evaluate_fails_on_accuracy_alone_when_many_predictions_are_wrong(score: Score) -> None:
    predictions = [0] * 9 + [1] + [1] * 9 + [0] + [2] * 18 + [0] * 2
    report = score(predictions, train_right=0.9)
    assert report.facts.accuracy == pytest.approx(0.9)
    assert failed(report) == ["min_accuracy"]


def test_evaluate_fails_on_recall_alone_and_names_the_class_when_one_class_is_bad(score: Score) -> None:
    report = score(TRUTH[:10] + [1] * 8 + [0] * 2 + TRUTH[20:], train_right=0.95)
    assert failed(report) == ["min_recall"]
    assert report.failures[0].value == pytest.approx(0.8)
    assert "'dog', 10 samples" in report.failures[0].detail


def test_evaluate_fails_on_precision_alone_and_names_the_class_that_is_predicted_too_often(score: Score) -> None:
    report = score([0] * 10 + [1] * 10 + [1] * 3 + [2] * 17, 0.95, min_accuracy=0.9, min_precision=0.8)
    assert failed(report) == ["min_precision"]
    assert report.failures[0].value == pytest.approx(10 / 13)
    assert "'dog', 10 samples" in report.failures[0].detail


def test_evaluate_fails_on_the_gap_alone_when_the_model_overfits(score: Score) -> None:
    predictions = [1, *TRUTH[1:10], 0, *TRUTH[11:20], 0, *TRUTH[21:]]
    report = score(predictions, train_right=1.0, min_accuracy=0.9)
    assert failed(report) == ["max_generalization_gap"]
    assert report.failures[0].value == pytest.approx(0.075)
    assert failed(score(predictions, train_right=0.95, min_accuracy=0.9)) == []


def test_evaluate_counts_every_image_once_when_predictions_are_mixed(score: Score) -> None:
    predictions = np.random.default_rng(0).integers(0, 3, len(TRUTH)).tolist()
    facts = score(predictions).facts
    confusion = np.array(facts.confusion)
    assert confusion.sum(axis=1).tolist() == [10, 10, 20]
    assert confusion.sum(axis=0).tolist() == np.bincount(predictions, minlength=3).tolist()
    assert np.trace(confusion) / confusion.sum() == pytest.approx(facts.accuracy)
    recalls = np.diag(confusion) / confusion.sum(axis=1)
    assert [c.recall for c in facts.classes] == pytest.approx(recalls.tolist())
    assert [(c.label, c.images) for c in facts.classes] == [("cat", 10), ("dog", 10), ("owl", 20)]


def test_evaluate_scores_zero_when_a_class_is_never_predicted(score: Score) -> None:
    report = score([0] * 10 + [0] * 10 + [2] * 20)
    dog = report.facts.classes[1]
    assert (dog.precision, dog.recall, dog.f1) == (0, 0, 0)
    assert "min_recall" in failed(report)


def test_evaluate_draws_the_confusion_matrix_when_done(score: Score, workspace: Callable[..., Workspace]) -> None:
    artifact = score(TRUTH).artifacts["confusion_matrix"]
    image = workspace().path(artifact).read_bytes()
    assert artifact.name == "confusion_matrix.png"
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    assert image.rstrip().endswith(b"IEND\xaeB`\x82")
    assert score(TRUTH).artifacts["confusion_matrix"] == artifact


def test_thousand_classes_are_scored_with_their_largest_confusions(workspace: Callable[..., Workspace]) -> None:
    out, classes = workspace(), 1000
    truth = np.repeat(np.arange(classes), 3)
    predicted = np.where(np.arange(truth.size) % 30 == 0, (truth + 1) % classes, truth)
    predicted[truth == 7] = 9
    np.savez(out.folder / "predictions.npz", test=predicted, test_labels=truth)
    labels = tuple(f"class {i}" for i in range(classes))
    kept = out.store_file(out.folder / "predictions.npz")
    report = evaluate(EvaluateConfig(), out, predictions=kept, signature=SIGNATURE.replace(labels=labels))
    assert len(report.facts.classes) == classes
    assert report.facts.confusion == ()
    first = report.facts.largest_confusions[0]
    assert (first.label, first.prediction, first.images) == ("class 7", "class 9", 3)
    assert len(report.facts.largest_confusions) == 20
    with np.load(out.path(report.artifacts["confusion"])) as file:
        assert (file["confusion"].shape, file["confusion"][7, 9]) == ((classes, classes), 3)
    assert len(report.model_dump_json()) < 200_000


@pytest.mark.slow
def test_thousand_classes_with_scores_stay_within_bounds(workspace: Callable[..., Workspace]) -> None:
    """The promise of the stage: under 300 MB, and a report that a page can hold."""
    out, classes, rng = workspace(), 1000, np.random.default_rng(0)
    truth = np.arange(4_000) % classes
    scores = rng.normal(0, 1, (truth.size, classes)).astype(np.float32)
    scores[np.arange(truth.size), truth] += 5
    arrays = {f"{name}_{part}": array for name in ("validation", "test") for part, array in
              (("labels", truth), ("scores", scores))}  # fmt: skip
    np.savez(out.folder / "predictions.npz", test=scores.argmax(axis=1), **arrays)
    labels = tuple(f"class {i}" for i in range(classes))
    kept = out.store_file(out.folder / "predictions.npz")
    tracemalloc.start()
    report = evaluate(EvaluateConfig(), out, predictions=kept, signature=SIGNATURE.replace(labels=labels))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300e6
    assert len(report.model_dump_json()) < 250_000
    assert len(report.facts.ranking.curves) == 5
    assert all(one.roc_auc is not None for one in report.facts.classes)


@pytest.mark.parametrize(("limit", "blocked"), [(0.0, ["min_score"]), (None, [])])
def test_values_that_do_not_fit_the_labels_stop_only_a_run_with_a_limit(
    workspace: Callable[..., Workspace], limit: float | None, blocked: list[str]
) -> None:
    out, values = workspace(), np.random.default_rng(0).normal(size=(60, 1))
    np.savez(out.folder / "predictions.npz", test=values, test_labels=values[::-1])
    signature = SIGNATURE.replace(task="regression", labels=("y",))
    stored = out.store_file(out.folder / "predictions.npz")
    report = evaluate(EvaluateConfig(min_score=limit), out, predictions=stored, signature=signature)
    assert failed(report) == blocked
    assert not report.checks[-1].passed
