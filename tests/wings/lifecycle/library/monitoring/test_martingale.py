"""Wealth of the tests: known values, a bounded rate of false alarms in dependent streams, and losses in groups."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from wings.lifecycle.library.monitoring import martingale
from wings.lifecycle.library.monitoring.autocorrelation import LAGS, autocorrelation_times
from wings.lifecycle.library.monitoring.drift_evidence import conformal_p_values, drift_wealth, log_bets
from wings.lifecycle.library.monitoring.martingale import FIRST, SCALE, wealth
from wings.lifecycle.library.monitoring.monitor_history import MonitorHistory
from wings.lifecycle.library.monitoring.risk_evidence import (
    ACQUITTAL_DOUBTS,
    HARM_DOUBTS,
    exceeds_wealth,
    harm_wealth,
    label_times,
    labeled_wealth,
    risk_lower_bound,
    risk_upper_bound,
    sample_times,
    within_wealth,
)

pytestmark = pytest.mark.slow
Stream = Callable[[np.random.Generator, int], np.ndarray]
STREAMS, SAMPLES = 20, 1200
LEVEL = 0.05 / 4 / 5
"""What one of five features has."""


def autoregressive(random: np.random.Generator, count: int, coefficient: float = 0.6) -> np.ndarray:
    from scipy.signal import lfilter

    innovations = random.normal(size=count) * np.sqrt(1 - coefficient**2)
    innovations[0] = random.normal()
    return np.asarray(lfilter([1.0], [1.0, -coefficient], innovations))


def bursts(random: np.random.Generator, count: int) -> np.ndarray:
    """Each user sends four images of one class."""
    return np.repeat(random.integers(0, 10, count // 4), 4).astype(float)


def groups(random: np.random.Generator, count: int) -> np.ndarray:
    """Groups of eight with an intraclass correlation of 0.3."""
    return np.repeat(np.sqrt(0.3) * random.normal(size=-(-count // 8)), 8)[:count] + np.sqrt(0.7) * random.normal(
        size=count
    )


@pytest.mark.parametrize("stream", [autoregressive, bursts, groups])
def test_dependent_streams_seldom_alarm_at_any_look(stream: Stream) -> None:
    ours, without = 0, 0
    for seed in range(STREAMS):
        random = np.random.default_rng(seed)
        samples = stream(random, SAMPLES)
        reference = random.permutation(stream(random, 40_000))[:500]
        ours += drift_wealth(reference, samples, seed=seed).first_above(LEVEL) is not None
        p_values = conformal_p_values(reference, samples, seed=seed)
        plain = wealth(lambda part, p=p_values: log_bets(p[part]), SAMPLES)
        without += plain.first_above(LEVEL) is not None
    assert ours <= 0.05 * STREAMS < without


@pytest.mark.parametrize(("change", "changed", "within"), [(1.0, 0, 120), (1.0, 1000, 120), (0.5, 1000, 500)])
def test_change_of_an_independent_stream_is_noticed(change: float, changed: int, within: int) -> None:
    alarms = []
    for seed in range(10):
        random = np.random.default_rng(seed)
        samples = random.normal(size=changed + within) + change * (np.arange(changed + within) >= changed)
        alarms.append(drift_wealth(random.normal(size=500), samples, seed=seed).first_above(LEVEL))
    assert sum(alarm is not None and alarm >= changed for alarm in alarms) >= 8


@pytest.mark.parametrize(("stream", "time"), [(autoregressive, 4.0), (bursts, 4.0), (groups, 1 + 7 * 0.3)])
def test_time_of_a_long_stream_is_that_of_its_definition(stream: Stream, time: float) -> None:
    found = autocorrelation_times(stream(np.random.default_rng(0), 9000)[:, None])
    assert found[-1] == pytest.approx(time, rel=0.25)


def test_lasting_change_does_not_count_as_dependence() -> None:
    samples = np.random.default_rng(0).normal(size=4000) + 2 * (np.arange(4000) >= 2000)
    assert autocorrelation_times(samples[:, None])[-1] < 1.4


def test_times_depend_on_earlier_samples_alone_and_constant_ones_are_as_good_as_independent() -> None:
    samples = np.random.default_rng(0).normal(size=(3000, 2))
    assert np.array_equal(autocorrelation_times(samples)[:700], autocorrelation_times(samples[:700]))
    assert autocorrelation_times(np.zeros((2000, 1)))[-1] < 1.2
    assert len(autocorrelation_times(np.zeros((2 * LAGS, 1)))) == 2 * LAGS


def test_wrong_predictions_that_come_by_user_seldom_prove_a_higher_risk() -> None:
    """Users of four requests, whose risks differ with an intraclass correlation of 0.3, at the bound itself."""
    ours = without = 0
    for seed in range(STREAMS):
        random = np.random.default_rng(seed)
        risks = random.beta(0.1 * 7 / 3, 0.9 * 7 / 3, SAMPLES // 4)
        losses = (random.random((SAMPLES // 4, 4)) < risks[:, None]).ravel().astype(float)
        ours += labeled_wealth(losses, 0.1).first_above(0.05) is not None
        without += exceeds_wealth(losses, 0.1).first_above(0.05) is not None
    assert ours <= 0.1 * STREAMS < without


@pytest.mark.parametrize(
    ("requests", "alike", "named"), [(8, 0.8, False), (16, 0.2, False), (20, 0.8, False), (8, 0, True), (20, 0, True)]
)
def test_users_of_many_requests_seldom_prove_either_risk(requests: int, alike: float, named: bool) -> None:
    """Whole users are wrong or right, at the bound itself; of their features, a share is the same, or their names."""
    harmful = harmless = without = 0
    for seed in range(STREAMS):
        random = np.random.default_rng(seed)
        users = -(-SAMPLES // requests)
        losses = np.repeat(random.random(users) < 0.1, requests)[:SAMPLES].astype(float)
        same = np.repeat(random.normal(size=(users, 2)), requests, axis=0)[:SAMPLES]
        features = np.sqrt(alike) * same + np.sqrt(1 - alike) * random.normal(size=(SAMPLES, 2))
        who = np.repeat(np.arange(users), requests)[:SAMPLES] if named else np.zeros(SAMPLES, int)
        known = of_clients(who, losses, features)
        harmful += harm_wealth(losses, 0.1, label_times(known, HARM_DOUBTS)).first_above(0.0125) is not None
        times = label_times(known, ACQUITTAL_DOUBTS)
        harmless += within_wealth(losses, 0.1, times).first_above(0.025) is not None
        without += labeled_wealth(1 - losses, 0.9).first_above(0.025) is not None
    assert max(harmful, harmless) <= 0.1 * STREAMS < without


def of_clients(who: np.ndarray, losses: np.ndarray, features: np.ndarray) -> MonitorHistory:
    ids = np.array([f"client-{client}/{place}".encode() for place, client in enumerate(who.tolist())])
    empty = MonitorHistory.empty(features.shape[1])
    return replace(empty, features=features, ids=ids, losses=losses, labeled=np.arange(len(losses)))


@pytest.mark.parametrize("requests", [1, 4, 16])
def test_names_of_clients_at_most_halve_the_power_where_labels_are_independent(requests: int) -> None:
    """One application has nine tenths of the requests; or clients send some in a row."""
    needed = list[list[int]]()
    for seed in range(9):
        random = np.random.default_rng(seed)
        losses, features = (random.random(2000) < 0.02).astype(float), random.normal(size=(2000, 2))
        who = np.arange(2000) // requests if requests > 1 else random.integers(0, 10, 2000) // 9
        named = label_times(of_clients(who, losses, features), ACQUITTAL_DOUBTS)
        both = named, sample_times(features, np.arange(2000))
        needed.append([within_wealth(losses, 0.1, times).first_above(0.025) or 2000 for times in both])
    assert np.divide(*np.median(needed, axis=0)) <= 2


def weights(samples: int) -> np.ndarray:
    """Return the weight of each start, and last what has not begun."""
    reserve = (1 - FIRST) * np.log(SCALE) / np.log(SCALE + np.arange(samples + 1))
    starts = -np.diff(reserve)
    starts[0] += FIRST
    return np.append(starts, reserve[-1])


def test_wealth_is_the_sum_over_ways_and_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(martingale, "CHUNK", 7)  # several chunks
    factors = np.random.default_rng(0).uniform(0.5, 1.6, (40, 3))
    found = wealth(lambda part: np.log(factors[part]), 40).log
    for end in (1, 7, 8, 40):
        weight = weights(end)
        begun = [weight[s] * factors[s:end].prod(axis=0).mean() for s in range(end)]
        assert found[end - 1] == pytest.approx(np.log(sum(begun) + weight[-1]))


def test_best_bet_names_the_way_that_wins_and_when_it_began_to() -> None:
    factors = np.full((1000, 3), np.log(0.9))
    factors[600:, 1] = np.log(1.5)
    found = wealth(lambda part: factors[part], 1000)
    alarm = found.first_above(0.01)
    assert alarm is not None and 600 < alarm < 660
    assert found.best_bet(alarm) == (1, 600)


def test_wealth_beyond_all_floats_does_not_overflow() -> None:
    found = wealth(lambda part: np.full((part.stop - part.start, 2), 5.0), 100_000)
    assert np.isfinite(found.log).all()
    assert found.first_above(1e-300) == 138  # log(1e300) is 690.8; 5 each, less the start's weight


BOUND = 0.06


def losses(seed: int, risk: float, count: int) -> np.ndarray:
    return (np.random.default_rng(seed).random(count) < risk).astype(float)


def test_risk_at_the_bound_seldom_alarms_at_any_look() -> None:
    streams = [losses(seed, BOUND, 3000) for seed in range(100)]
    assert sum(exceeds_wealth(one, BOUND).first_above(0.05) is not None for one in streams) <= 5
    times = sample_times(np.random.default_rng(0).normal(size=(3000, 1)), np.arange(3000))
    assert sum(within_wealth(one, BOUND, times).first_above(0.05) is not None for one in streams) <= 5


def test_higher_risk_is_proven_soon_after_it_begins() -> None:
    alarm = exceeds_wealth(np.concatenate([losses(0, 0.02, 1000), losses(1, 0.3, 300)]), BOUND).first_above(0.025)
    assert alarm is not None and 1000 < alarm < 1080


def test_lower_risk_is_proven() -> None:
    times = sample_times(np.random.default_rng(0).normal(size=(400, 2)), np.arange(400))
    alarm = within_wealth(losses(0, 0.01, 400), BOUND, times).first_above(0.05)
    assert alarm is not None and alarm > 40


def test_bounds_hold_the_risk() -> None:
    found = [
        (risk_lower_bound(losses(seed, 0.2, 800), 0.05), risk_upper_bound(losses(seed, 0.2, 800), 0.05))
        for seed in range(10)
    ]
    assert all(0.1 < low < 0.2 < high < 0.3 for low, high in found)


def test_without_labels_nothing_is_proven() -> None:
    assert (risk_lower_bound(np.zeros(0), 0.05), risk_upper_bound(np.zeros(0), 0.05)) == (0, 1)


def test_any_loss_between_zero_and_one_counts() -> None:
    assert exceeds_wealth(np.full(200, 0.5), BOUND).first_above(0.05) is not None
    assert risk_lower_bound(np.full(2000, 0.5), 0.05) == pytest.approx(0.5, abs=0.06)
