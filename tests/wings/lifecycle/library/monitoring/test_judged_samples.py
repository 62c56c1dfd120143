"""Labels are judged by the time of their requests, and some in a row together."""

from dataclasses import replace

import numpy as np
import pytest

from wings.lifecycle.library.monitoring.judged_samples import HOUR_S, judged_labels
from wings.lifecycle.library.monitoring.judgment import gather, harm_bound
from wings.lifecycle.library.monitoring.monitor_history import MonitorHistory
from wings.lifecycle.library.monitoring.monitor_result import MonitorLimits
from wings.lifecycle.library.monitoring.reference import MonitoringReference
from wings.lifecycle.library.monitoring.risk_evidence import harm_wealth

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
    return replace(
        one,
        losses=losses[order].astype(float),
        labels=np.zeros(len(order), np.int64),
        labeled=order,
        label_times=HOUR_S * came[order],
    )


def reference(wrong: np.ndarray) -> MonitoringReference:
    return MonitoringReference(("predicted class",), np.zeros((len(wrong), 1)), wrong)


def proves_harm(one: MonitorHistory, known: MonitoringReference) -> bool:
    evidence = gather(one, known, LIMITS)
    return evidence.risk is not None and evidence.risk.first_above(evidence.risk_level) is not None


def test_wrong_predictions_that_are_told_sooner_prove_nothing_at_any_look() -> None:
    """The risk stays at 3 %; a wrong prediction is corrected after an hour, a right one confirmed after two days."""
    known, false, without = reference(np.arange(1000) < 30), 0, 0
    for seed in range(5):
        losses = np.random.default_rng(seed).random(1500) < 0.03
        one, delays = history(np.arange(1500) / 20), np.where(losses, 1.0, 46.0)
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
    times = np.arange(100.0)
    times[3] += 1000
    one = labeled(history(times), np.zeros(100), np.where(np.arange(100) == 3, np.inf, 1.0), 2000)
    assert len(judged_labels(one, 48, 102 * HOUR_S).labeled) == 99


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
    for seed in range(40):
        losses = np.repeat(np.random.default_rng(seed).random(1600 // requests) < 0.03, requests)
        one = replace(history(np.arange(1600) / 20), losses=losses.astype(float), labeled=np.arange(1600))
        false += proves_harm(one, known)
    assert false == 0
    harmed = replace(one, losses=(np.random.default_rng(0).random(1600) < 0.5).astype(float))
    assert proves_harm(replace(harmed, losses=harmed.losses[:64], labeled=np.arange(64)), known)
