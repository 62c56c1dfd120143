"""A candidate that gives up one rare class does not pass, however good its accuracy is."""

import numpy as np
import pytest

from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import Golden
from gauntlet.problems.accuracy_checks import accuracy_checks, class_checks
from gauntlet.problems.accuracy_comparison import AccuracyComparison, AccuracyLimits, compare_accuracy

LABELS = ("common", "usual", "rare")
TRUTH = np.repeat([0, 1, 2], [480, 495, 25])


def scores(predicted: np.ndarray) -> dict[str, np.ndarray]:
    return {"y": np.eye(3, dtype=np.float32)[predicted]}


def compared(before: np.ndarray, after: np.ndarray) -> AccuracyComparison:
    reference = Golden({}, scores(before), TRUTH)
    signature = Signature(task="classification", layout="none", inputs=(), outputs=(), labels=LABELS)
    return compare_accuracy(reference, signature, scores(after))


def failed(comparison: AccuracyComparison, min_recall: float = 0.0, min_precision: float = 0.0) -> list[str]:
    limits = AccuracyLimits(max_accuracy_drop=0.03, min_sqnr_db=-100, max_ranking_drop=1)
    checks = [*accuracy_checks(limits, comparison), *class_checks(comparison, min_recall, min_precision)]
    return [check.name for check in checks if check.blocks]


def losing(images: int) -> np.ndarray:
    """Predictions that are right but for some images of the rare class."""
    predicted = TRUTH.copy()
    predicted[975 : 975 + images] = 0
    return predicted


def test_lost_rare_class_is_rejected_although_the_accuracy_is_98_percent() -> None:
    comparison = compared(TRUTH, losing(22))
    assert comparison.accuracy == pytest.approx(0.978)
    assert failed(comparison) == ["accuracy.max_class_drop"]
    drop = comparison.largest_class_drop
    assert (drop.label, drop.changed) == ("rare", "22 of 25 samples lost, 0 gained")


def test_one_lost_image_of_a_rare_class_is_no_proof() -> None:
    assert failed(compared(TRUTH, losing(1))) == []


def test_limits_on_the_worst_class_hold_for_candidates_too() -> None:
    comparison = compared(TRUTH, losing(5))
    assert failed(comparison, min_recall=0.85) == ["accuracy.min_recall"]
    wrong = TRUTH.copy()
    wrong[:6] = 2
    assert failed(compared(TRUTH, wrong), min_precision=0.9) == ["accuracy.min_precision"]


def test_class_that_the_reference_misses_too_is_not_held_against_a_candidate() -> None:
    assert failed(compared(losing(10), losing(10)), min_recall=0.85) == []
    assert failed(compared(losing(10), losing(11)), min_recall=0.85) == ["accuracy.min_recall"]
