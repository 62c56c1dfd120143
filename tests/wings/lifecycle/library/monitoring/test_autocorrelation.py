"""Dependent streams keep the rate of false alarms, and a change in an independent one is still noticed."""

from collections.abc import Callable

import numpy as np
import pytest

from wings.lifecycle.library.monitoring.autocorrelation import LAGS, autocorrelation_times
from wings.lifecycle.library.monitoring.drift_evidence import conformal_p_values, drift_wealth, log_bets
from wings.lifecycle.library.monitoring.martingale import wealth
from wings.lifecycle.library.monitoring.risk_evidence import exceeds_wealth, labeled_wealth

Stream = Callable[[np.random.Generator, int], np.ndarray]
STREAMS, SAMPLES = 40, 1200
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
