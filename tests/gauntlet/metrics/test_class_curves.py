"""ROC and precision-recall of each class against the rest: scikit-learn's figures, and few points."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from gauntlet.metrics.class_curves import MAX_CURVES, RankedClassScore, rank_classes
from gauntlet.metrics.confidence_calibration import class_probabilities


def scored(truth: np.ndarray, classes: int) -> tuple[RankedClassScore, ...]:
    counts = np.bincount(truth, minlength=classes)
    return tuple(
        RankedClassScore(label=f"class {i}", precision=0, recall=0, f1=0, images=int(n)) for i, n in enumerate(counts)
    )


@pytest.fixture
def noisy() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 8, 600)
    return (rng.normal(0, 1, (600, 8)) + 1.5 * np.eye(8)[truth]).astype(np.float32), truth


@pytest.mark.parametrize("as_probabilities", [False, True])
def test_areas_are_scikit_learns(noisy: tuple[np.ndarray, np.ndarray], as_probabilities: bool) -> None:
    logits, truth = noisy
    probabilities = class_probabilities(logits)
    classes, ranking = rank_classes(probabilities if as_probabilities else logits, truth, scored(truth, 8))
    for number, one in enumerate(classes):
        assert one.roc_auc == pytest.approx(roc_auc_score(truth == number, probabilities[:, number]), abs=1e-6)
        expected = average_precision_score(truth == number, probabilities[:, number])
        assert one.average_precision == pytest.approx(expected, abs=1e-6)
    macro = roc_auc_score(truth, probabilities, multi_class="ovr", average="macro")
    assert ranking.macro_roc_auc == pytest.approx(macro, abs=1e-6)


def test_ties_count_half_as_in_scikit_learn() -> None:
    truth = np.array([0, 0, 1, 1])
    scores = np.array([[0.9, 0.1], [0.5, 0.5], [0.5, 0.5], [0.2, 0.8]], np.float32)
    classes, _ = rank_classes(scores, truth, scored(truth, 2))
    assert [one.roc_auc for one in classes] == pytest.approx([0.875, 0.875])


def test_curves_of_the_worst_classes_are_kept_with_few_points(noisy: tuple[np.ndarray, np.ndarray]) -> None:
    logits, truth = noisy
    classes, ranking = rank_classes(logits, truth, scored(truth, 8))
    averages = {one.label: one.average_precision for one in classes}
    assert [curve.label for curve in ranking.curves] == sorted(averages, key=lambda name: averages[name])[:MAX_CURVES]
    for curve in ranking.curves:
        false, true = curve.false_positive_rate, curve.true_positive_rate
        assert len(false) == len(true) == len(curve.precision) <= 102
        assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
        assert list(false) == sorted(false)
        assert list(true) == sorted(true)
        area = next(one.roc_auc for one in classes if one.label == curve.label)
        assert np.trapezoid(true, false) == pytest.approx(area, abs=0.01)


def test_class_without_images_or_alone_has_no_area() -> None:
    truth, scores = np.zeros(4, np.int64), np.eye(4)[:, :2].astype(np.float32)
    classes, ranking = rank_classes(scores, truth, scored(truth, 2))
    assert [one.roc_auc for one in classes] == [None, None]
    assert ranking is None
