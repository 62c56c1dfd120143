"""Labels are judged by the time of their requests; without labels, accuracy is estimated or the reason is named."""

from dataclasses import replace

import numpy as np
import pytest

from wings.lifecycle.library.monitoring.accuracy_estimate import (
    MAX_ERROR,
    ConfidenceMap,
    calibration_gap,
    estimate_accuracy,
)
from wings.lifecycle.library.monitoring.judged_samples import HOUR_S, judged_labels
from wings.lifecycle.library.monitoring.judgment import gather, harm_bound
from wings.lifecycle.library.monitoring.monitor_history import MonitorHistory
from wings.lifecycle.library.monitoring.monitor_result import EstimateResult, MonitorLimits
from wings.lifecycle.library.monitoring.reference import MonitoringReference
from wings.lifecycle.library.monitoring.risk_evidence import harm_wealth

pytestmark = pytest.mark.slow
LIMITS = MonitorLimits()


def history(times_h: np.ndarray, features: np.ndarray | None = None) -> MonitorHistory:
    count = len(times_h)
    return replace(
        MonitorHistory.empty(1),
        features=np.zeros((count, 1)) if features is None else features[:, None],
        times=HOUR_S * times_h,
        ids=np.arange(count).astype(np.bytes_),
        places=np.zeros((count, 3), np.int64),
        broken=np.zeros(count),
    )


def labeled(one: MonitorHistory, losses: np.ndarray, delays_h: np.ndarray, now_h: float) -> MonitorHistory:
    """Return the history with the labels that have come by now, in the order in which they came."""
    came = one.times / HOUR_S + delays_h
    order = np.argsort(came, kind="stable")
    order = order[came[order] <= now_h]
    labels, times = np.zeros(len(order), np.int64), HOUR_S * came[order]
    return replace(one, losses=losses[order].astype(float), labels=labels, labeled=order, label_times=times)


def reference(wrong: np.ndarray) -> MonitoringReference:
    return MonitoringReference(("predicted class",), np.zeros((len(wrong), 1)), wrong)


def proves_harm(one: MonitorHistory, known: MonitoringReference) -> bool:
    evidence = gather(one, known, LIMITS)
    return evidence.risk is not None and evidence.risk.first_above(evidence.risk_level) is not None


def test_wrong_predictions_that_are_told_sooner_prove_nothing_at_any_look() -> None:
    """The risk stays at 3 %; a wrong prediction is corrected after an hour, a right one confirmed after two days."""
    known, false, without = reference(np.arange(1000) < 30), 0, 0
    for seed in range(3):
        losses = np.random.default_rng(seed).random(3000) < 0.03
        one, delays = history(np.arange(3000) / 40), np.where(losses, 1.0, 46.0)
        looks = [(labeled(one, losses, delays, now), HOUR_S * now) for now in range(2, 130, 9)]
        false += any(proves_harm(judged_labels(found, LIMITS.label_window_h, now), known) for found, now in looks)
        without += any(proves_harm(judged_labels(found, 0, now), known) for found, now in looks)
    assert false == 0 < without


def test_label_waits_for_those_of_earlier_requests_until_they_are_too_old() -> None:
    one, delays = history(np.arange(10.0)), np.array([0.5, 9, 0.5, np.inf, 0.5, 0.5, 60, 0.5, 0.5, 0.5])
    losses = np.arange(10) % 2 == 1

    def judged(now_h: float) -> tuple[list[int], int, int, int]:
        found = judged_labels(labeled(one, losses, delays, now_h), 48, HOUR_S * now_h)
        assert found.losses.tolist() == losses[found.labeled].tolist()
        return found.labeled.tolist(), found.unlabeled, found.waiting, found.late

    assert judged(9.6) == ([0], 0, 6, 0)
    assert judged(10.5) == ([0, 1, 2], 0, 5, 0)
    assert judged(52) == ([0, 1, 2, 4, 5], 1, 3, 0)
    assert judged(100) == ([0, 1, 2, 4, 5, 7, 8, 9], 1, 0, 1)


def test_without_a_window_labels_are_judged_as_they_come() -> None:
    one = labeled(history(np.arange(4.0)), np.ones(4), np.array([3.0, 1, np.inf, 0]), 9)
    found = judged_labels(one, 0, 0)
    assert (found.labeled.tolist(), found.unlabeled, found.waiting) == (one.labeled.tolist(), 1, 0)


def test_request_with_a_time_in_the_future_makes_no_label_wait_for_it() -> None:
    times = np.arange(100.0) + 1000 * (np.arange(100) == 3)
    one = labeled(history(times), np.zeros(100), np.where(np.arange(100) == 3, np.inf, 1.0), 2000)
    assert len(judged_labels(one, 48, 102 * HOUR_S).labeled) == 99


def test_request_with_a_time_in_the_past_makes_no_earlier_label_too_late() -> None:
    times = 500 + np.arange(100.0) - 600 * (np.arange(100) == 90)
    found = judged_labels(labeled(history(times), np.zeros(100), np.ones(100), 700), 48, 700 * HOUR_S)
    assert (len(found.labeled), found.late) == (100, 0)


def test_request_with_a_time_in_the_past_lets_no_label_before_it_be_judged_sooner() -> None:
    """Labels of wrong predictions came already; a server that has just started had the time of 1970."""
    losses = np.arange(200) % 10 == 0
    one = labeled(history(10_000 + np.arange(200.0) / 10), losses, np.where(losses, 0.1, 40), 10_020)
    behind = replace(one, times=np.where(np.isin(np.arange(200), [151, 152, 199]), 0, one.times))
    found = [judged_labels(each, 48, HOUR_S * 10_020) for each in (one, behind)]
    assert [(len(each.labeled), each.waiting) for each in found] == [(1, 19), (1, 19)]


@pytest.mark.parametrize(("samples", "error", "increase"), [(50, 0.2, 0.05), (50, 0.3, 0.05), (360, 0.1, 0.01)])
def test_unchanged_risk_is_seldom_harmful_however_few_samples_the_evaluation_had(
    samples: int, error: float, increase: float
) -> None:
    limits, false, without = MonitorLimits(max_error_increase=increase), 0, 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        known, losses = reference(random.random(samples) < error), (random.random(6000) < error).astype(float)
        bounds = harm_bound(known, limits), known.error + increase
        alarms = [harm_wealth(losses, bound).first_above(limits.false_alarms / 4) is not None for bound in bounds]
        false, without = false + alarms[0], without + alarms[1]
    assert false <= 1 < without


def test_bound_of_harm_is_close_to_the_evaluation_where_that_is_large() -> None:
    assert harm_bound(reference(np.arange(2000) < 40), LIMITS) == pytest.approx(0.02 + 0.05 + 0.008, abs=0.002)
    assert harm_bound(reference(np.ones(20, bool)), LIMITS) == 0.99
    assert harm_bound(MonitoringReference(("x",), np.zeros((3, 1)), None), LIMITS) is None


@pytest.mark.parametrize("requests", [4, 8, 16])
def test_predictions_that_are_wrong_for_whole_users_are_no_harm(requests: int) -> None:
    """The risk stays at 3 %, and is that of users, who each send some requests in a row."""
    known, false = reference(np.arange(2000) < 60), 0
    for seed in range(20):
        losses = np.repeat(np.random.default_rng(seed).random(1600 // requests) < 0.03, requests)
        one = replace(history(np.arange(1600) / 20), losses=losses.astype(float), labeled=np.arange(1600))
        false += proves_harm(one, known)
    assert false == 0
    harmed = replace(one, losses=(np.random.default_rng(0).random(1600) < 0.5).astype(float))
    assert proves_harm(replace(harmed, losses=harmed.losses[:64], labeled=np.arange(64)), known)


def test_new_risk_is_harm_before_it_looks_like_dependence() -> None:
    losses = np.random.default_rng(0).random(760) < np.where(np.arange(760) < 360, 0.01, 0.8)
    assert 360 < (harm_wealth(losses.astype(float), 0.08).first_above(0.0125) or 0) < 424


NAMES = ("brightness", "predicted class", "confidence")


def draw(seed: int, count: int, *, easy: float = 4.0, brightness: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Return features, and which predictions are right: as often as twice the log odds of the confidence say."""
    random = np.random.default_rng(seed)
    confidence = random.beta(easy, 1, count) * 0.5 + 0.5
    odds = 2 * np.log(np.clip(confidence, 0, 1 - 1e-9) / (1 - np.clip(confidence, 0, 1 - 1e-9)))
    right = random.random(count) < 1 / (1 + np.exp(-odds))
    features = [random.normal(brightness, 0.1, count), random.integers(0, 3, count), confidence]
    return np.stack(features, axis=1), right


def confident_history(features: np.ndarray) -> MonitorHistory:
    return replace(MonitorHistory.empty(len(NAMES)), features=features, times=np.arange(len(features), dtype=float))


@pytest.fixture(scope="module")
def confident_reference() -> MonitoringReference:
    features, right = draw(0, 3000)
    return MonitoringReference(NAMES, features, ~right)


def look(confident_reference: MonitoringReference, one: MonitorHistory, start: int = 0) -> EstimateResult:
    found = estimate_accuracy(one, confident_reference, start)
    assert found is not None
    return found


@pytest.mark.parametrize("easy", [4.0, 3.5, 5.0])
def test_estimate_is_within_two_points_and_its_interval_mostly_has_the_accuracy(
    confident_reference: MonitoringReference, easy: float
) -> None:
    inside = 0
    for seed in range(1, 21):
        features, right = draw(seed, 2000, easy=easy)
        found = look(confident_reference, confident_history(features))
        assert found.accuracy is not None and found.low is not None and found.high is not None
        assert abs(found.accuracy - right.mean()) <= 0.03
        inside += found.low <= right.mean() <= found.high
    assert inside >= 16  # of 20; the reference, which is the same for all, has an error of its own


def test_only_samples_from_the_start_on_count(confident_reference: MonitoringReference) -> None:
    features = np.concatenate([draw(1, 1000, brightness=0.9)[0], draw(2, 1000)[0]])
    assert "brightness is" in look(confident_reference, confident_history(features)).reason
    assert look(confident_reference, confident_history(features), start=1000).accuracy is not None


def test_samples_that_moved_far_are_not_estimated(confident_reference: MonitoringReference) -> None:
    found = look(confident_reference, confident_history(draw(1, 1000, brightness=0.7)[0]))
    assert (found.accuracy, found.farthest) == (None, "brightness")
    assert "calibration is shown to hold up to 0.2" in found.reason
    assert look(confident_reference, confident_history(draw(1, 1000, easy=1.0)[0])).farthest == "confidence"


def test_labels_that_contradict_silence_the_estimate(confident_reference: MonitoringReference) -> None:
    features, right = draw(1, 2000)
    agreeing = replace(confident_history(features), labeled=np.arange(600), losses=(~right[:600]).astype(float))
    assert look(confident_reference, agreeing).accuracy is not None
    drifted = replace(agreeing, losses=(np.arange(600) % 3 == 0).astype(float))  # the concept changed
    assert "labels of recent samples contradict it" in look(confident_reference, drifted).reason


def test_calibration_that_fails_on_the_evaluation_is_said(confident_reference: MonitoringReference) -> None:
    confidence = confident_reference.features[:, 2]
    middle = (confidence > 0.8) & (confidence < 0.9)
    wrong = np.where(middle, np.arange(len(middle)) % 2 == 0, np.arange(len(middle)) % 20 == 0)
    broken = MonitoringReference(NAMES, confident_reference.features, wrong)
    assert "the calibration fails" in look(broken, confident_history(draw(1, 1000)[0])).reason
    calibrated = ConfidenceMap.fit(confidence, (~wrong).astype(float))
    assert calibration_gap(calibrated(confidence), (~wrong).astype(float)) > MAX_ERROR


def test_what_is_too_little_is_said(confident_reference: MonitoringReference) -> None:
    assert "it takes 300 samples" in look(confident_reference, confident_history(draw(1, 299)[0])).reason
    small = MonitoringReference(NAMES, confident_reference.features[:100], confident_reference.wrong[:100])  # type: ignore[index]
    assert "its interval is" in look(small, confident_history(draw(1, 1000)[0])).reason
    unlogged = draw(1, 1000)[0]
    unlogged[:, 0] = np.nan
    assert "it takes 300 samples with statistics" in look(confident_reference, confident_history(unlogged)).reason
    tensors = MonitoringReference(("input mean", *NAMES[1:]), confident_reference.features, confident_reference.wrong)
    assert "the inputs are no images" in look(tensors, confident_history(draw(1, 1000)[0])).reason


def test_without_labels_or_confidence_there_is_no_estimate(confident_reference: MonitoringReference) -> None:
    one = confident_history(draw(1, 1000)[0])
    assert estimate_accuracy(one, MonitoringReference(NAMES, confident_reference.features, None)) is None
    names = ("brightness", "predicted class")
    other = MonitoringReference(names, confident_reference.features[:, :2], confident_reference.wrong)
    assert estimate_accuracy(replace(one, features=one.features[:, :2]), other) is None


def test_map_stays_finite_where_every_prediction_is_right() -> None:
    mean, half = ConfidenceMap.fit(np.full(500, 0.99), np.ones(500)).mean(np.full(100, 0.99))
    assert 0.98 < mean < 1 and 0 < half < 0.05
