"""Confidence against accuracy, on scores whose calibration is known, and against scikit-learn."""

import tracemalloc

import numpy as np
import pytest
from sklearn.metrics import log_loss

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


def test_temperature_never_changes_the_prediction() -> None:
    logits, _ = calibrated_logits(300)
    for temperature in (0.05, 0.7, 20.0):
        assert np.array_equal(class_probabilities(logits, temperature).argmax(axis=1), logits.argmax(axis=1))


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
