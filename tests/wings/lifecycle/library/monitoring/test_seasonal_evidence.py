"""Streams that follow a daily cycle raise no alarm by default, and changes in them do."""

import numpy as np
import pytest

from wings.lifecycle.library.monitoring.drift_evidence import drift_wealth
from wings.lifecycle.library.monitoring.judged_samples import HOUR_S
from wings.lifecycle.library.monitoring.monitor_result import MonitorLimits
from wings.lifecycle.library.monitoring.seasonal_evidence import seasonal_wealth

LEVEL, PER_DAY, DAYS = 0.0025, 1000, 4
HOURS = np.arange(DAYS * PER_DAY) / PER_DAY * 24
CYCLE = np.sin(HOURS / 24 * 2 * np.pi)
SEASON_H = MonitorLimits().season_h


def draws(seed: int, amplitude: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a reference that has all hours, and a stream of some days."""
    random = np.random.default_rng(seed)
    reference = amplitude * np.sin(random.random(500) * 2 * np.pi) + random.normal(size=500)
    return reference, amplitude * CYCLE + random.normal(size=len(HOURS))


def alarm(reference: np.ndarray, stream: np.ndarray, season_h: float = SEASON_H, seed: int = 0) -> int | None:
    return seasonal_wealth(reference, stream, HOUR_S * HOURS, season_h, seed=seed).first_above(LEVEL)


@pytest.mark.parametrize("amplitude", [0.0, 0.5, 1.0])
def test_daily_cycle_is_no_alarm_by_default(amplitude: float) -> None:
    found = [alarm(*draws(seed, amplitude), seed=seed) for seed in range(8)]
    assert found == [None] * 8
    if amplitude:
        at_once = [alarm(*draws(seed, amplitude), season_h=0, seed=seed) for seed in range(8)]
        assert None not in at_once  # so the cycle would be one


def test_users_who_send_several_requests_are_no_alarm_in_a_cycle_either() -> None:
    for seed in range(8):
        random = np.random.default_rng(seed)
        stream = 0.5 * CYCLE + np.repeat(random.normal(size=500), 8) * 0.55 + random.normal(size=4000) * 0.83
        assert alarm(draws(seed, 0.5)[0], stream, seed=seed) is None


@pytest.mark.parametrize(
    ("changed", "by", "first", "last"),
    [
        pytest.param(100, 3.5, 100, 200, id="far from the evaluation, on the first day"),
        pytest.param(100, 1.0, 999, 999, id="at the end of the first day"),
        pytest.param(2400, 1.0, 2400, 2800, id="later, against the same hours before"),
    ],
)
def test_change_in_a_cycle_is_found(changed: int, by: float, first: int, last: int) -> None:
    for seed in range(4):
        reference, stream = draws(seed, 0.5)
        stream[changed:] += by
        evidence = seasonal_wealth(reference, stream, HOUR_S * HOURS, SEASON_H, seed=seed)
        found = evidence.first_above(LEVEL)
        assert found is not None and first <= found <= last
        begun = evidence.best_bet(found)[1]
        assert begun == 0 if found == 999 else abs(begun - changed) < 150


def test_evidence_stays_when_more_samples_follow_and_gaps_are_no_bets() -> None:
    reference, stream = draws(0, 0.5)
    stream[::7] = np.nan
    whole = seasonal_wealth(reference, stream, HOUR_S * HOURS, 24, seed=3).log
    part = seasonal_wealth(reference, stream[:2600], HOUR_S * HOURS[:2600], 24, seed=3).log
    assert np.allclose(whole[:2600], part)
    assert np.isfinite(whole).all()


def test_without_a_season_all_are_compared_with_the_reference_at_once() -> None:
    reference, stream = draws(0, 0.0)
    found = seasonal_wealth(reference, stream, HOUR_S * HOURS, 0, seed=1)
    assert found.log.tolist() == drift_wealth(reference, stream, seed=1).log.tolist()
