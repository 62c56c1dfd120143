"""The interval of a percentile covers it, also where late requests come in bursts."""

import math

import numpy as np
import pytest

from serving.stages.serve.percentile_interval import percentile_interval

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


@pytest.mark.parametrize(("load", "requests"), [(0.3, 2000), (0.6, 5000)])
def test_interval_covers_the_percentile_of_a_queue(load: float, requests: int) -> None:
    """M/M/1, by Lindley's recursion: P(wait > t) = load exp(-(1 / load - 1) t), with arrivals a unit apart."""
    truth = -math.log(0.01 / load) / (1 / load - 1)
    rng, covered = np.random.default_rng(4), 0
    for _ in range(60):
        _, low, high = percentile_interval(waiting_times(rng, requests, load), 99)
        covered += low <= truth <= high
    assert covered >= 54  # 95 % of 60 are 57


def waiting_times(rng: np.random.Generator, count: int, load: float) -> np.ndarray:
    begin = 500
    steps = np.cumsum(rng.exponential(load, count + begin) - rng.exponential(1.0, count + begin))
    return (steps - np.minimum.accumulate(np.minimum(steps, 0)))[begin:]
