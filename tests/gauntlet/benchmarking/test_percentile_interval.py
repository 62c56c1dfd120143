"""The interval of a percentile covers it, also where late requests come in bursts."""

import math

import numpy as np
import pytest

from gauntlet.benchmarking.percentile_interval import percentile_interval

MANY = 1000


def test_interval_of_independent_values_is_that_of_their_order_statistics() -> None:
    x = np.random.default_rng(0).permutation(np.arange(1.0, 10_001.0))
    center, low, high = percentile_interval(x, 99)
    assert center == 9900
    assert (
        9860 < low < 9890
    )  # Clopper and Pearson's 1.22 % of 10,000 are 122, and the spread between sections widens it
    assert 9910 < high < 9935


@pytest.mark.parametrize("count", [1, 2, 100, 400])
def test_upper_end_is_infinite_with_too_few_values(count: int) -> None:
    center, low, high = percentile_interval(np.arange(float(count)), 99)
    assert (center, high) == (max(0, math.ceil(0.99 * count) - 1), math.inf)
    assert low >= 0


def test_five_hundred_values_are_enough_whatever_they_are() -> None:
    bursts = np.repeat([1.0, 1000.0], [490, 10])
    for x in (np.ones(500), bursts, np.random.default_rng(1).pareto(0.5, 500)):
        _, low, high = percentile_interval(x, 99)
        assert low <= high <= x.max()


def test_bursts_widen_the_interval() -> None:
    scattered = np.random.default_rng(2).exponential(1, MANY)
    together = np.sort(scattered)
    center, low, high = percentile_interval(scattered, 99)
    other = percentile_interval(together, 99)
    assert other[0] == center
    assert other[1] < low
    assert other[2] >= high


def test_infinite_values_are_above_all_others() -> None:
    x = np.random.default_rng(3).uniform(1, 2, MANY)
    x[::20] = math.inf
    assert percentile_interval(x, 99) == (math.inf, math.inf, math.inf)
    x[::20] = 1.0
    x[7] = math.inf
    center, _, high = percentile_interval(x, 99)
    assert center < 2
    assert high < math.inf


def test_no_values_have_no_percentile() -> None:
    assert all(map(math.isnan, percentile_interval([], 99)))


@pytest.mark.parametrize("correlated", [False, True], ids=["independent", "queueing"])
def test_interval_covers_the_percentile_as_often_as_it_says(correlated: bool) -> None:
    """Waiting times of a queue at 60 % load (Lindley's recursion), whose true percentile is known from a long run."""
    rng = np.random.default_rng(4)
    truth = float(np.quantile(waiting_times(rng, 400_000, correlated), 0.99))
    covered = 0
    for _ in range(200):
        _, low, high = percentile_interval(waiting_times(rng, 2000, correlated), 99)
        covered += low <= truth <= high
    assert covered >= 180  # 95 % of 200 are 190


def waiting_times(rng: np.random.Generator, count: int, correlated: bool) -> np.ndarray:
    service, gaps = rng.exponential(0.6, count + 500), rng.exponential(1.0, count + 500)
    if not correlated:
        return service[500:]
    steps = np.cumsum(service - gaps)
    waits = steps - np.minimum.accumulate(np.minimum(steps, 0))
    return waits[500:]
