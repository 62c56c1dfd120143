"""Failures, broken outputs and latencies are judged by windows of time: a burst proves nothing, what lasts does."""

from dataclasses import replace

import numpy as np
import pytest

from wings.lifecycle.library.monitoring.monitor_history import MonitorHistory
from wings.lifecycle.library.monitoring.monitor_result import MonitorLimits, ServiceResult
from wings.lifecycle.library.monitoring.risk_evidence import exceeds_wealth
from wings.lifecycle.library.monitoring.service_evidence import (
    BROKEN,
    FAILED,
    LATE,
    WINDOW_S,
    service_tests,
    window_losses,
)

LIMITS = MonitorLimits(p99_ms=50)
LEVEL = 0.01


def history(seed: int, windows: int, *, failed: float = 0.0, late: float = 0.0, broken: float = 0.0) -> MonitorHistory:
    """Return a history with 20 requests in each window, of which shares are in trouble."""
    random = np.random.default_rng(seed)
    times = np.arange(20 * windows) * WINDOW_S / 20
    count = len(times)
    return replace(
        MonitorHistory.empty(1),
        times=times,
        broken=(random.random(count) < broken).astype(float),
        outcome_times=times,
        milliseconds=np.where(random.random(count) < late, 80.0, 10.0),
        failed=(random.random(count) < failed).astype(float),
    )


def look(one: MonitorHistory, limits: MonitorLimits = LIMITS, since: float = 0.0) -> dict[str, ServiceResult]:
    return {test.name: test.result(LEVEL) for test in service_tests(one, limits, since)}


@pytest.mark.parametrize(("name", "trouble"), [(FAILED, "failed"), (LATE, "late"), (BROKEN, "broken")])
def test_trouble_above_its_limit_is_proven_and_only_that(name: str, trouble: str) -> None:
    found = look(history(0, 100, **{trouble: 0.1}))
    assert [one for one in found if found[one].alarm_at is not None] == [name]
    assert found[name].requests == 2000 and found[name].troubled > 100


def test_trouble_at_its_limit_seldom_alarms_at_any_look() -> None:
    streams = [look(history(seed, 300, failed=0.01, late=0.01, broken=0.01)) for seed in range(100)]
    for name in (FAILED, LATE, BROKEN):
        assert sum(one[name].alarm_at is not None for one in streams) <= 5


def test_burst_proves_nothing() -> None:
    one = history(0, 60)
    failed = one.failed.copy()
    failed[400:420] = 1  # all requests of one window
    assert look(replace(one, failed=failed))[FAILED].alarm_at is None
    failed[400:520] = 1
    assert look(replace(one, failed=failed))[FAILED].alarm_at is not None


def test_window_that_may_still_grow_is_left_out() -> None:
    times = np.repeat([0.0, 12.0, 11.0, 25.0], [10, 5, 5, 10])  # a clock that went back is still in the second window
    troubled = np.repeat([1.0, 0, 1, 1], [10, 5, 5, 10])
    assert window_losses(times, troubled).tolist() == [1.0, 0.5]
    assert window_losses(times[:10], troubled[:10]).tolist() == window_losses(times[:0], troubled[:0]).tolist() == []


@pytest.mark.parametrize("step", [86_400.0, -86_400.0])
def test_clock_that_is_set_forward_or_back_hides_no_trouble(step: float) -> None:
    times, troubled = np.arange(2400.0), (np.arange(2400) >= 1200).astype(float)
    times[1100] += step  # one request alone
    later = times + step * (np.arange(2400) >= 1150)  # and for good
    assert len(window_losses(times, troubled)) > 230 and len(window_losses(later, troubled)) > 230
    for found in (times, later):
        assert exceeds_wealth(window_losses(found, troubled), 0.01).first_above(LEVEL) in range(118, 128)


def test_few_requests_make_longer_windows() -> None:
    times, troubled = np.arange(25) * WINDOW_S, np.zeros(25)
    troubled[:3] = 1
    assert window_losses(times, troubled).tolist() == [0.3, 0]


def test_what_was_asked_before_a_time_does_not_count() -> None:
    one = history(0, 100, failed=0.5)
    assert look(one)[FAILED].alarm_at is not None
    later = look(one, since=float(one.outcome_times[-5]))[FAILED]
    assert (later.requests, later.alarm_at) == (5, None)


def test_without_an_objective_latencies_are_not_judged() -> None:
    assert [*look(history(0, 10, late=1.0), MonitorLimits())] == [FAILED, BROKEN]
