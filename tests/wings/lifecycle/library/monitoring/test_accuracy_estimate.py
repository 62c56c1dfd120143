"""Accuracy without labels: right where confidence means what it did, and silent where it does not."""

from dataclasses import replace

import numpy as np
import pytest

from wings.lifecycle.library.monitoring.accuracy_estimate import (
    MAX_ERROR,
    ConfidenceMap,
    calibration_gap,
    estimate_accuracy,
)
from wings.lifecycle.library.monitoring.monitor_history import MonitorHistory
from wings.lifecycle.library.monitoring.monitor_result import EstimateResult
from wings.lifecycle.library.monitoring.reference import MonitoringReference

NAMES = ("brightness", "predicted class", "confidence")


def draw(seed: int, count: int, *, easy: float = 4.0, brightness: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Return features, and which predictions are right: as often as twice the log odds of the confidence say."""
    random = np.random.default_rng(seed)
    confidence = random.beta(easy, 1, count) * 0.5 + 0.5
    odds = 2 * np.log(np.clip(confidence, 0, 1 - 1e-9) / (1 - np.clip(confidence, 0, 1 - 1e-9)))
    right = random.random(count) < 1 / (1 + np.exp(-odds))
    features = [random.normal(brightness, 0.1, count), random.integers(0, 3, count), confidence]
    return np.stack(features, axis=1), right


def history(features: np.ndarray) -> MonitorHistory:
    return replace(MonitorHistory.empty(len(NAMES)), features=features, times=np.arange(len(features), dtype=float))


@pytest.fixture(scope="module")
def reference() -> MonitoringReference:
    features, right = draw(0, 3000)
    return MonitoringReference(NAMES, features, ~right)


def look(reference: MonitoringReference, one: MonitorHistory, start: int = 0) -> EstimateResult:
    found = estimate_accuracy(one, reference, start)
    assert found is not None
    return found


@pytest.mark.parametrize("easy", [4.0, 3.5, 5.0])
def test_estimate_is_within_two_points_and_its_interval_mostly_has_the_accuracy(
    reference: MonitoringReference, easy: float
) -> None:
    inside = 0
    for seed in range(1, 21):
        features, right = draw(seed, 2000, easy=easy)
        found = look(reference, history(features))
        assert found.accuracy is not None and found.low is not None and found.high is not None
        assert abs(found.accuracy - right.mean()) <= 0.03
        inside += found.low <= right.mean() <= found.high
    assert inside >= 16  # of 20; the reference, which is the same for all, has an error of its own


def test_only_samples_from_the_start_on_count(reference: MonitoringReference) -> None:
    features = np.concatenate([draw(1, 1000, brightness=0.9)[0], draw(2, 1000)[0]])
    assert "brightness is" in look(reference, history(features)).reason
    assert look(reference, history(features), start=1000).accuracy is not None


def test_samples_that_moved_far_are_not_estimated(reference: MonitoringReference) -> None:
    found = look(reference, history(draw(1, 1000, brightness=0.7)[0]))
    assert (found.accuracy, found.farthest) == (None, "brightness")
    assert "calibration is shown to hold up to 0.2" in found.reason
    assert look(reference, history(draw(1, 1000, easy=1.0)[0])).farthest == "confidence"


def test_labels_that_contradict_silence_the_estimate(reference: MonitoringReference) -> None:
    features, right = draw(1, 2000)
    labeled = np.arange(600)
    agreeing = replace(history(features), labeled=labeled, losses=(~right[:600]).astype(float))
    assert look(reference, agreeing).accuracy is not None
    drifted = replace(agreeing, losses=(np.arange(600) % 3 == 0).astype(float))  # the concept changed
    assert "labels of recent samples contradict it" in look(reference, drifted).reason


def test_calibration_that_fails_on_the_evaluation_is_said(reference: MonitoringReference) -> None:
    confidence = reference.features[:, 2]
    middle = (confidence > 0.8) & (confidence < 0.9)
    wrong = np.where(middle, np.arange(len(middle)) % 2 == 0, np.arange(len(middle)) % 20 == 0)
    broken = MonitoringReference(NAMES, reference.features, wrong)
    assert "the calibration fails" in look(broken, history(draw(1, 1000)[0])).reason
    calibrated = ConfidenceMap.fit(confidence, (~wrong).astype(float))
    assert calibration_gap(calibrated(confidence), (~wrong).astype(float)) > MAX_ERROR


def test_what_is_too_little_is_said(reference: MonitoringReference) -> None:
    assert "it takes 300 samples" in look(reference, history(draw(1, 299)[0])).reason
    small = MonitoringReference(NAMES, reference.features[:100], reference.wrong[:100])  # type: ignore[index]
    assert "its interval is" in look(small, history(draw(1, 1000)[0])).reason
    unlogged = draw(1, 1000)[0]
    unlogged[:, 0] = np.nan
    assert "it takes 300 samples with statistics" in look(reference, history(unlogged)).reason
    tensors = MonitoringReference(("input mean", *NAMES[1:]), reference.features, reference.wrong)
    assert "the inputs are no images" in look(tensors, history(draw(1, 1000)[0])).reason


def test_without_labels_or_confidence_there_is_no_estimate(reference: MonitoringReference) -> None:
    one = history(draw(1, 1000)[0])
    assert estimate_accuracy(one, MonitoringReference(NAMES, reference.features, None)) is None
    names = ("brightness", "predicted class")
    other = MonitoringReference(names, reference.features[:, :2], reference.wrong)
    assert estimate_accuracy(replace(one, features=one.features[:, :2]), other) is None


def test_map_stays_finite_where_every_prediction_is_right() -> None:
    calibrated = ConfidenceMap.fit(np.full(500, 0.99), np.ones(500))
    mean, half = calibrated.mean(np.full(100, 0.99))
    assert 0.98 < mean < 1 and 0 < half < 0.05
