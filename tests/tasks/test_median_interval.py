"""The interval behind every verdict of the race: what it promises is computed, and then simulated."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.statistics import median_interval

POSITIVE = st.floats(1e-3, 1e3)
SAMPLES = st.lists(POSITIVE, min_size=6, max_size=40)


def ranks(n: int) -> tuple[int, int]:
    """Return which order statistics (from 0) the interval takes, seen on the values 0 to n - 1."""
    _, low, high = median_interval(np.arange(n))
    return int(low), int(high)


def coverage(n: int) -> float:
    """Return the exact chance that the interval of n independent values contains the true median."""
    low, high = ranks(n)
    return sum(math.comb(n, below) for below in range(low + 1, high + 1)) / 2**n


@given(values=SAMPLES)
def test_interval_brackets_the_median_when_there_are_enough_values(values: list[float]) -> None:
    median, low, high = median_interval(values)
    assert low <= median <= high
    assert median == np.median(values)
    assert {low, high} <= set(values)


@given(values=SAMPLES, seed=st.integers(0, 100))
def test_interval_is_the_same_when_values_are_shuffled(values: list[float], seed: int) -> None:
    assert median_interval(np.random.default_rng(seed).permutation(values)) == median_interval(values)


@given(values=SAMPLES, power=st.integers(-6, 6))
def test_interval_scales_when_values_are_scaled(values: list[float], power: int) -> None:
    factor = 2.0**power
    assert median_interval([factor * v for v in values]) == tuple(factor * v for v in median_interval(values))


@given(values=SAMPLES)
def test_interval_is_wider_when_the_confidence_is_higher(values: list[float]) -> None:
    _, low, high = median_interval(values, 0.8)
    _, lower, higher = median_interval(values, 0.99)
    assert lower <= low
    assert high <= higher


@pytest.mark.parametrize("n", range(1, 6))
def test_interval_is_infinite_when_there_are_fewer_than_six_values(n: int) -> None:
    assert median_interval(np.ones(n)) == (1.0, -math.inf, math.inf)


def test_interval_says_nothing_when_values_are_missing_or_nan() -> None:
    for values in ([], [1.0] * 11 + [math.nan]):
        median, low, high = median_interval(values)
        assert math.isnan(median)
        assert (low, high) == (-math.inf, math.inf)


@pytest.mark.parametrize("n", [*range(6, 61), 100, 1000])
def test_interval_covers_at_least_95_percent_and_is_the_narrowest_when_counted(n: int) -> None:
    low, high = ranks(n)
    assert high == n - 1 - low
    assert coverage(n) >= 0.95
    narrower = sum(math.comb(n, below) for below in range(low + 2, high)) / 2**n
    assert narrower < 0.95


def test_interval_takes_the_tabled_ranks_when_compared_with_the_sign_test() -> None:
    # Conover, Practical Nonparametric Statistics, table of the binomial distribution: n -> r-th smallest, from 1.
    assert {n: ranks(n)[0] + 1 for n in (6, 8, 9, 12, 20, 30)} == {6: 1, 8: 1, 9: 2, 12: 3, 20: 6, 30: 10}


@pytest.mark.parametrize("n", [6, 12, 25])
def test_interval_contains_the_true_median_when_simulated_with_skewed_noise(n: int) -> None:
    draws = np.random.default_rng(7).lognormal(mean=0.0, sigma=1.0, size=(2000, n))  # the true median is 1
    covered = np.mean([low <= 1.0 <= high for _, low, high in map(median_interval, draws)])
    error = 4 * math.sqrt(coverage(n) * (1 - coverage(n)) / len(draws))
    assert covered == pytest.approx(coverage(n), abs=error)
    assert covered >= 0.93


def test_interval_contains_one_when_a_model_is_raced_against_itself() -> None:
    noise = np.random.default_rng(11)
    first, second = 1 + noise.gamma(2.0, 0.02, size=(2, 400, 12))  # latencies: a floor, and a tail to one side
    covered = [low <= 1 <= high for _, low, high in map(median_interval, first / second)]
    assert np.mean(covered) >= 0.93
