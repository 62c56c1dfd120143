"""A challenger is judged in its problem's metric: one as good passes, a worse one is refused, few prove nothing."""

from pathlib import Path

import numpy as np
import pytest
from problem_samples import LABELS
from replayed_problems import ReplayedProblem

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import ConfigError
from gauntlet.core.report import Check
from gauntlet.core.signature import Signature, Task, TensorSpec
from gauntlet.metrics.paired_accuracy import PairedChange
from wings.lifecycle.library.promotion.quality import Quality, drop_verdict, quality_drop
from wings.lifecycle.library.promotion.replay_facts import (
    ReplayFacts,
    ReplayLimits,
    class_check,
    gain_check,
    ranking_check,
    replay_checks,
)
from wings.lifecycle.library.promotion.replayed_requests import ArrayRequests
from wings.lifecycle.library.promotion.shadow_replay import gain_of, shadow_replay

METRICS: dict[Task, tuple[str, str]] = {
    "classification": ("accuracy", "accuracy"),
    "multi-label": ("macro_f1", "accuracy"),
    "regression": ("r2", "r2"),
    "detection": ("map", "accuracy"),
    "segmentation": ("miou", "miou"),
    "text": ("character_accuracy", "accuracy"),
    "embedding": ("recall_at_1", "cosine"),
}
"""With labels and without, where an accuracy is the share of requests that are predicted the same."""
CASES = [
    *((task, labeled, names[not labeled]) for labeled in (True, False) for task, names in METRICS.items()),
    ("arrays", False, "accuracy"),
]
EQUAL, WORSE = 1e-5, 0.8
LIMITS = ReplayLimits(rounds=6, block_ms=2, max_slowdown=50)


def compared(given: ReplayedProblem, after: NamedArrays, labeled: bool) -> Quality:
    before = {"y": given.x}
    return quality_drop((given.signature,) * 2, (before, after), truth_of(given) if labeled else None)


def truth_of(given: ReplayedProblem) -> np.ndarray:
    assert given.truth is not None
    return np.array(LABELS)[given.truth] if given.task == "classification" else given.truth


def quality_check(found: Quality, labeled: bool) -> Check:
    """Return the check of the quality, beside a latency that is the same."""
    limit = LIMITS.max_accuracy_drop if labeled else LIMITS.max_disagreement
    quality, needed = drop_verdict(found[0], limit)
    numbers = ("champion_ms", "challenger_ms", "slowdown", "slowdown_low", "slowdown_high")
    facts = {"champion": "0", "source": "test", "requests": found[0].n, "labeled": labeled, "quality": quality}
    facts |= {"requests_to_resolve": needed, "batch": 1, "latency": "proven good", "rounds": 6, "more_rounds": None}
    facts |= dict.fromkeys(numbers, 0.0) | {"timed_requests": 6}
    return replay_checks(ReplayFacts(change=found[0], **facts), LIMITS)[0]


@pytest.mark.parametrize(("task", "labeled", "metric"), CASES)
def test_equal_challenger_passes_and_a_worse_one_is_refused(
    task: Task, labeled: bool, metric: str, tmp_path: Path
) -> None:
    given = ReplayedProblem.of(task)
    equal = compared(given, given.outputs(EQUAL, tmp_path), labeled)
    check = quality_check(equal, labeled)
    assert check.name == ("promote.max_accuracy_drop" if labeled else "promote.max_disagreement")
    assert (equal[0].metric, check.passed, equal[0].n) == (metric, True, 300)
    assert check.detail.startswith("proven good")
    worse = compared(given, given.outputs(WORSE, tmp_path), labeled)
    refused = quality_check(worse, labeled)
    assert refused.blocks
    assert refused.detail.startswith("proven bad")
    if worse[0].lost is None:
        assert f"{metric} {worse[0].after:.4f} against {worse[0].before:.4f}" in refused.detail


@pytest.mark.parametrize("task", METRICS)
def test_all_metrics_of_both_are_kept_where_there_are_labels(task: Task, tmp_path: Path) -> None:
    given = ReplayedProblem.of(task, 60)
    change, scores, champion_scores, *_ = compared(given, given.outputs(WORSE, tmp_path), labeled=True)
    assert scores.keys() == champion_scores.keys()
    assert (scores[change.metric], champion_scores[change.metric]) == pytest.approx((change.after, change.before))
    if task == "regression":
        assert scores["mae"] > champion_scores["mae"]
    if task == "text":
        assert scores["exact_match"] < champion_scores["exact_match"]


def test_few_requests_prove_nothing_and_the_number_that_is_named_does(tmp_path: Path) -> None:
    few = ReplayedProblem.of("segmentation", 40)
    found = compared(few, {"y": few.x}, labeled=True)
    assert found[0].drop == 0
    verdict, needed = drop_verdict(found[0], LIMITS.max_accuracy_drop)
    assert verdict == "not resolved"
    assert needed is not None
    check = quality_check(found, labeled=True)
    assert check.blocks
    assert f"about {needed} requests (--requests)" in check.remedy
    enough = ReplayedProblem.of("segmentation", needed)
    assert quality_check(compared(enough, {"y": enough.x}, labeled=True), labeled=True).passed


def test_interval_of_a_bootstrap_without_a_change_is_that_of_an_accuracy() -> None:
    nothing = PairedChange(metric="miou", n=100, before=0.9, after=0.9, drop=0, low=0, high=0)
    same, *_ = quality_drop(
        (ReplayedProblem.of("classification").signature,) * 2,
        ({"y": np.eye(3)[[0] * 100]}, {"y": np.eye(3)[[0] * 100]}),
        None,
    )
    assert nothing.widened().high == pytest.approx(same.high)
    assert nothing.widened().low == pytest.approx(same.low)


def test_challenger_without_a_number_is_refused() -> None:
    given = ReplayedProblem.of("regression")
    for labeled in (True, False):
        check = quality_check(compared(given, {"y": np.full_like(given.x, np.nan)}, labeled), labeled)
        assert check.blocks


@pytest.mark.parametrize("labeled", [True, False])
def test_challenger_whose_scores_are_nan_for_the_first_class_is_refused(labeled: bool) -> None:
    given = ReplayedProblem.of("classification")
    first = given.x.argmax(axis=1, keepdims=True) == 0
    found = compared(given, {"y": np.where(first, np.nan, given.x)}, labeled)
    assert quality_check(found, labeled).detail.startswith("proven bad")


@pytest.mark.parametrize("labeled", [True, False])
def test_predictions_that_do_not_compare_are_refused(labeled: bool) -> None:
    given = ReplayedProblem.of("regression", 20)
    with pytest.raises(ConfigError, match="the champion predicts 3 values a request, the challenger 2"):
        compared(given, {"y": given.x[:, :2]}, labeled)
    other = given.signature.replace(labels=("c", "b", "a"))
    with pytest.raises(ConfigError, match=r"labels are \('a', 'b', 'c'\), the challenger's \('c', 'b', 'a'\)"):
        quality_drop((given.signature, other), ({"y": given.x},) * 2, given.truth if labeled else None)


def test_labels_that_do_not_fit_are_refused() -> None:
    numbers, nothing = ReplayedProblem.of("regression", 20), ReplayedProblem.of("arrays", 20)
    with pytest.raises(
        ConfigError, match=r"cannot be compared with the labels: .*shape \(20, 3\), the truth \(20, 1\)"
    ):
        quality_drop((numbers.signature,) * 2, ({"y": numbers.x},) * 2, np.zeros(20))
    with pytest.raises(ConfigError, match="outputs are no predictions"):
        quality_drop((nothing.signature,) * 2, ({"y": nothing.x},) * 2, np.zeros(20))


def test_segmentation_is_replayed_in_processes_and_a_gain_is_proven_in_its_metric(tmp_path: Path) -> None:
    given = ReplayedProblem.of("segmentation")
    champion = given.bundle(WORSE, tmp_path / "champion")
    better = given.bundle(0, tmp_path / "better")
    requests = ArrayRequests("recorded.npz", {"x": given.x}, given.truth)
    gain = gain_of(champion, better, requests, tmp_path, LIMITS)
    assert (gain.metric, gain.after > gain.before) == ("miou", True)
    assert gain_check(gain, requests.source).passed
    assert gain_check(gain_of(better, champion, requests, tmp_path, LIMITS), requests.source).blocks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "labeled", "metric"),
    [("text", True, "character_accuracy"), ("embedding", False, "cosine"), ("arrays", False, "accuracy")],
)
def test_every_kind_of_comparison_is_replayed_in_processes(
    task: Task, labeled: bool, metric: str, tmp_path: Path
) -> None:
    given = ReplayedProblem.of(task)
    champion = given.bundle(0, tmp_path / "champion")
    truth = truth_of(given) if labeled else None
    for noise, name in ((EQUAL, "equal"), (WORSE, "worse")):
        challenger = given.bundle(noise, tmp_path / name)
        facts = shadow_replay(champion, challenger, ArrayRequests("test", {"x": given.x}, truth), LIMITS)
        assert facts.change.metric == metric
        assert replay_checks(facts, LIMITS)[0].blocks is (name == "worse")


@pytest.mark.parametrize("labeled", [True, False])
def test_challenger_that_gives_up_a_rare_class_is_refused_however_good_the_rest(labeled: bool) -> None:
    given = ReplayedProblem.of("classification", 12)
    truth = np.repeat([0, 1, 2], [1500, 1490, 10])
    before, after = np.eye(3, dtype=np.float32)[truth], np.eye(3, dtype=np.float32)[np.where(truth == 2, 1, truth)]
    names = np.array(LABELS)[truth] if labeled else None
    found = quality_drop((given.signature,) * 2, ({"y": before}, {"y": after}), names)
    assert quality_check(found, labeled).passed
    drop = found[3]
    assert drop is not None and (drop.label, drop.changed) == (LABELS[2], "10 of 10 samples lost, 0 gained")
    [check] = class_check(drop, LIMITS)
    assert (check.name, check.blocks) == ("promote.max_class_drop", True)
    assert not class_check(drop, LIMITS.replace(max_class_drop=1.0))[0].blocks


@pytest.mark.parametrize("task", ["classification", "multi-label"])
def test_challenger_that_keeps_the_classes_and_loses_their_order_is_refused(task: Task) -> None:
    """Below 0.1, fraud is no longer told from the usual."""
    rng = np.random.default_rng(4)
    fraud = 1 / (1 + np.exp(4.2 - 1.9 * rng.normal(size=4000)))
    labels, is_fraud = ("usual", "fraud"), rng.random(4000) < fraud
    truth = np.array(labels)[is_fraud.astype(int)] if task == "classification" else np.stack([~is_fraud, is_fraud], 1)
    before, after = (np.stack([1 - p, p], 1).astype(np.float32) for p in (fraud, np.where(fraud < 0.1, 0.0, fraud)))
    output = TensorSpec(name="y", dtype="float32", shape=("batch", 2))
    signature = Signature(task=task, layout="none", inputs=(), outputs=(output,), labels=labels)
    found = quality_drop((signature, signature), ({"y": before}, {"y": after}), truth)
    assert found.change.drop == 0
    assert [check.blocks for check in ranking_check(found.ranking, LIMITS)] == [True]
    same = quality_drop((signature, signature), ({"y": before}, {"y": before}), truth)
    assert [check.blocks for check in ranking_check(same.ranking, LIMITS)] == [False]
