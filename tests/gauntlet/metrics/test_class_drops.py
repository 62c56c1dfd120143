"""A candidate that gives up one rare class does not pass, however good the rest is, with labels or without."""

import numpy as np
import pytest

from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import Golden
from gauntlet.metrics.class_drops import largest_counted_drop, largest_drop, largest_number_drop
from gauntlet.metrics.class_scores import ClassCounts
from gauntlet.problems.accuracy_checks import accuracy_checks, class_checks
from gauntlet.problems.accuracy_comparison import AccuracyComparison, AccuracyLimits, compare_accuracy

FRAUD = Signature(task="classification", layout="none", inputs=(), outputs=(), labels=("usual", "fraud", "dispute"))


def judged(truth: np.ndarray | None, before: np.ndarray, after: np.ndarray) -> AccuracyComparison:
    """Compare predictions whose classes are all about as probable: no noise shows what changed."""
    scores = [{"y": np.where(np.eye(3)[predicted] > 0, 0.34, 0.33).astype(np.float32)} for predicted in (before, after)]
    return compare_accuracy(Golden({}, scores[0], truth), FRAUD, scores[1])


def failed(truth: np.ndarray | None, before: np.ndarray, after: np.ndarray) -> set[str]:
    checks = accuracy_checks(AccuracyLimits(min_sqnr_db=-100, max_ranking_drop=1), judged(truth, before, after))
    return {check.name for check in checks if check.blocks}


def frauds(count: int, samples: int = 2000) -> np.ndarray:
    return (np.arange(samples) < count).astype(np.int64)


@pytest.mark.parametrize("labelled", [True, False])
def test_lost_half_of_ten_frauds_is_refused_although_a_quarter_of_a_percent_changed(labelled: bool) -> None:
    truth = frauds(10)
    lost = np.where(np.arange(2000) < 5, 0, truth)
    assert failed(truth if labelled else None, truth, lost) == {"accuracy.max_class_drop"}
    assert failed(truth if labelled else None, truth, frauds(10)) == set()
    drop = judged(truth, truth, lost).largest_class_drop
    assert (drop.label, drop.changed) == ("fraud", "5 of 10 samples lost, 0 gained")


@pytest.mark.parametrize("labelled", [True, False])
def test_false_alarms_beside_ten_frauds_are_refused(labelled: bool) -> None:
    truth = frauds(10)
    assert failed(truth if labelled else None, truth, frauds(19)) == {"accuracy.max_class_drop"}


@pytest.mark.parametrize("labelled", [True, False])
def test_alarms_of_a_class_that_the_reference_never_predicts_are_refused(labelled: bool) -> None:
    truth, alarms = frauds(1000), frauds(9)
    assert failed(truth if labelled else None, truth, truth + alarms) == {"accuracy.max_class_drop"}
    assert failed(truth if labelled else None, truth, truth + frauds(1)) == set()


def test_one_of_ten_proves_nothing() -> None:
    truth = frauds(10)
    assert failed(truth, truth, np.where(np.arange(2000) < 1, 0, truth)) == set()
    assert failed(None, truth, frauds(11)) == set()


def limits_missed(before: np.ndarray, after: np.ndarray, **limits: float) -> list[str]:
    """Return the failed limits on the worst of the classes, of which 25 samples are frauds."""
    checks = class_checks(judged(frauds(25), before, after), **({"min_recall": 0.0, "min_precision": 0.0} | limits))
    return [check.name for check in checks if check.blocks]


def test_limits_on_the_worst_class_hold_for_candidates_too() -> None:
    assert limits_missed(frauds(25), frauds(20), min_recall=0.85) == ["accuracy.min_recall"]
    assert limits_missed(frauds(25), frauds(31), min_precision=0.9) == ["accuracy.min_precision"]


def test_class_that_the_reference_misses_too_is_not_held_against_a_candidate() -> None:
    assert limits_missed(frauds(15), frauds(15), min_recall=0.85) == []
    assert limits_missed(frauds(15), frauds(14), min_recall=0.85) == ["accuracy.min_recall"]


def test_classes_that_lose_as_many_as_they_gain_are_not_refused() -> None:
    """Of ten classes one in twenty predictions changes, to any other class: in one of twenty candidates or fewer."""
    rng, refused = np.random.default_rng(5), 0
    for _ in range(400):
        before = rng.integers(0, 10, 360)
        after = np.where(rng.random(360) < 0.05, rng.integers(0, 10, 360), before)
        refused += largest_drop(before, after, ()).drop_low > 0.1
    assert refused <= 0.05 * 400


def test_loss_at_its_limit_is_proven_in_one_of_forty_candidates_or_fewer() -> None:
    rng, proven = np.random.default_rng(7), 0
    truth = np.repeat(np.arange(5), 40)
    for _ in range(400):
        after = np.where((truth == 3) & (rng.random(200) < 0.1), 4, truth)
        proven += largest_drop(truth, after, (), truth).drop_low > 0.1
    assert proven <= 0.025 * 400


def compared(before: np.ndarray, after: np.ndarray, actual: np.ndarray) -> float | None:
    """Return the proven drop of one class by hits and objects, shape (images,)."""
    first, last, whole = (part[:, None].astype(float) for part in (before, after, actual))
    drop = largest_counted_drop(ClassCounts(first, first, whole), ClassCounts(last, last, whole), ("one",))
    return None if drop is None else drop.drop_low


def test_recall_drop_that_no_class_has_is_proven_in_one_of_twenty_tables_or_less() -> None:
    """Pixels of an image are right or wrong together; both models have the same recall."""
    rng, proven = np.random.default_rng(6), 0
    for _ in range(200):
        actual = rng.integers(50, 200, 40)
        before, after = (actual * rng.uniform(0.5, 1, actual.shape) for _ in range(2))
        proven += (compared(before, after, actual) or 0) > 0
    assert proven <= 0.05 * 200


def test_class_in_few_images_loses_recall_only_where_it_vanishes() -> None:
    actual = np.full(5, 4)
    assert compared(actual, actual - 2, actual) is None
    assert compared(actual, 0 * actual, actual) > 0.4


@pytest.mark.parametrize("labelled", [True, False])
def test_one_of_twenty_numbers_that_loses_a_fifth_of_its_r2_is_refused(labelled: bool) -> None:
    """The mean over the numbers loses 0.01."""
    rng = np.random.default_rng(9)
    before = rng.normal(size=(1000, 20)).astype(np.float32)
    after, same = before.copy(), before + rng.normal(scale=0.1, size=before.shape).astype(np.float32)
    after[:, 7] += rng.normal(scale=0.5, size=1000)
    truth = before + rng.normal(scale=0.4, size=before.shape) if labelled else None
    signature = Signature(task="regression", layout="none", inputs=(), outputs=())
    verdicts = []
    for candidate in (after, same):
        comparison = compare_accuracy(Golden({}, {"y": before}, truth), signature, {"y": candidate})
        checks = accuracy_checks(AccuracyLimits(min_sqnr_db=-100), comparison)
        verdicts.append(
            [check.detail[:11] for check in checks if check.name == "accuracy.max_class_drop" and check.blocks]
        )
    assert verdicts == [["number '7':"], []]


def test_drop_at_its_limit_of_one_of_many_numbers_is_proven_in_one_of_forty_tables_or_fewer() -> None:
    rng, proven = np.random.default_rng(11), 0
    for _ in range(300):
        truth = rng.normal(size=(120, 8))
        before = truth + rng.normal(scale=0.3, size=truth.shape)
        after = truth + rng.normal(scale=(0.3**2 + 0.1) ** 0.5, size=truth.shape)
        proven += largest_number_drop(before, after, (), truth).drop_low > 0.1
    assert proven <= 0.025 * 300


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize(("classes", "scale"), [(3, 0.55), (3, 2.5), (2, 0.3)])
def test_scaled_confidence_is_refused_although_no_class_changes(labelled: bool, classes: int, scale: float) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=1.5, size=(400, classes)).astype(np.float32)
    truth, signature = logits.argmax(axis=1), FRAUD.replace(labels=FRAUD.labels[:classes])
    golden = Golden({}, {"y": logits}, truth if labelled else None)
    limits = AccuracyLimits(min_sqnr_db=-100, max_accuracy_drop=0.1)
    noisy = logits + rng.normal(scale=0.05, size=logits.shape).astype(np.float32)
    for actual, passes in ((logits * np.float32(scale), False), (noisy, True)):
        compared = compare_accuracy(golden, signature, {"y": actual})
        failures = [check.name for check in accuracy_checks(limits, compared) if check.blocks]
        assert failures == ([] if passes else ["accuracy.max_class_drop"])
        assert passes or "mean 'confidence': 0." in compared.largest_class_drop.text
