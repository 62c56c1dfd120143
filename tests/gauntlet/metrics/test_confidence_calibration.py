"""Confidence against accuracy, on scores whose calibration is known, and against scikit-learn."""

import tracemalloc

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

from gauntlet.metrics.class_curves import MAX_CURVES, RankedClassScore, rank_classes
from gauntlet.metrics.confidence_calibration import (
    are_probabilities,
    calibrate_confidence,
    calibration_scores,
    class_probabilities,
    fit_temperature,
)


def calibrated_logits(count: int, classes: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores whose softmax is exactly how often each class is true."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (count, classes))
    truth = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return logits.astype(np.float32), truth


def test_scores_are_scikit_learns() -> None:
    logits, truth = calibrated_logits(500)
    probabilities = class_probabilities(logits)
    found = calibration_scores(logits, truth)
    assert found.log_loss == pytest.approx(log_loss(truth, probabilities), rel=1e-5)
    assert found.brier_score == pytest.approx(((probabilities - np.eye(4)[truth]) ** 2).sum(axis=1).mean())
    assert sum(one.images for one in found.bins) == 500


def test_calibration_error_is_that_of_the_paper() -> None:
    """Two bins: 0.75 stated and half of it right; 0.95 stated and all right."""
    probabilities = np.array([[0.75, 0.25]] * 4 + [[0.95, 0.05]] * 4)
    found = calibration_scores(probabilities, np.array([0, 0, 1, 1, 0, 0, 0, 0]))
    assert found.ece == pytest.approx(0.5 * 0.25 + 0.5 * 0.05)
    assert [(one.images, one.accuracy) for one in found.bins] == [(4, 0.5), (4, 1.0)]


def test_full_confidence_is_in_the_last_bin() -> None:
    [only] = calibration_scores(np.eye(3, dtype=np.float32), np.arange(3)).bins
    assert (only.accuracy, only.images) == (1, 3)
    assert only.confidence == pytest.approx(1)


@pytest.mark.parametrize("factor", [0.4, 1.0, 3.0])
def test_temperature_undoes_what_made_the_scores_over_or_underconfident(factor: float) -> None:
    logits, truth = calibrated_logits(20_000)
    assert fit_temperature(factor * logits, truth) == pytest.approx(factor, rel=0.05)


def test_temperature_of_probabilities_is_that_of_their_logarithms() -> None:
    logits, truth = calibrated_logits(5_000)
    overconfident = class_probabilities(2.5 * logits)
    assert are_probabilities(overconfident)
    assert fit_temperature(overconfident, truth) == pytest.approx(fit_temperature(2.5 * logits, truth), rel=0.02)
    np.testing.assert_allclose(class_probabilities(overconfident, 2.5), class_probabilities(logits), atol=1e-4)


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_probabilities_of_eight_bits_stay_as_they_are(classes: int) -> None:
    logits = 3 * np.random.default_rng(0).normal(size=(200, classes))
    rounded = np.float32(np.round(255 * class_probabilities(logits)) / 255)
    assert class_probabilities(rounded) is rounded
    assert not are_probabilities(np.abs(logits))


def test_calibrated_scores_need_no_temperature_and_stay_as_they_are() -> None:
    probabilities = np.array([[0.7, 0.3], [0.2, 0.8]], np.float32)
    assert class_probabilities(probabilities) is probabilities


def test_model_that_is_always_right_does_not_become_certain() -> None:
    """Without smoothing, the log loss falls without end as the temperature does."""
    truth = np.arange(100) % 4
    logits = 2.0 * np.eye(4)[truth]
    temperature = fit_temperature(logits, truth)
    assert 0.1 < temperature < 1
    assert class_probabilities(logits, temperature).max() < 0.999


def test_temperature_is_fitted_on_the_held_out_split_alone() -> None:
    logits, truth = calibrated_logits(4_000)
    held_out = ("validation", 3 * logits[:2000], truth[:2000])
    one, other = (
        calibrate_confidence(3 * logits[2000:], labels, held_out) for labels in (truth[2000:], (truth[2000:] + 1) % 4)
    )
    assert one.temperature == other.temperature == pytest.approx(3, rel=0.1)
    assert (one.fitted_on, one.fitted_images) == ("validation", 2000)
    assert one.best is one.after
    assert one.after.ece < 0.5 * one.before.ece
    assert one.after.log_loss < one.before.log_loss


def test_without_a_held_out_split_there_is_no_temperature() -> None:
    found = calibrate_confidence(*calibrated_logits(100), None)
    assert (found.after, found.temperature, found.best) == (None, None, found.before)


@pytest.mark.parametrize("truth", [[0, 4], [-1, 0]])
def test_class_without_a_score_has_no_calibration(truth: list[int]) -> None:
    assert calibrate_confidence(np.zeros((2, 4)), np.array(truth), None) is None


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scores_that_are_not_finite_have_no_calibration(value: float) -> None:
    assert calibrate_confidence(np.array([[0.0, value]]), np.array([0]), None) is None


def test_memory_is_bounded_with_a_thousand_classes() -> None:
    logits, truth = calibrated_logits(4_000, classes=1_000)
    tracemalloc.start()
    found = calibrate_confidence(logits, truth, ("validation", logits, truth))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None
    assert peak < 200e6


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
