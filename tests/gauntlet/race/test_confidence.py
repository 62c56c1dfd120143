"""The intervals behind every verdict of the race: what they promise is counted, and then simulated."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_races import MIN_FOUND, NOISES, RACES, SESSIONS, normal, raced

from gauntlet.race.confidence import median_shift_interval, percentile_bound, rounds_to_resolve

VALUES = st.lists(st.integers(-1000, 1000).map(lambda n: n / 16), min_size=6, max_size=30)


@given(values=VALUES)
def test_interval_brackets_its_estimate_when_there_are_enough_values(values: list[float]) -> None:
    centre, low, high = median_shift_interval(values)
    assert min(values) <= low <= centre <= high <= max(values)


@given(values=VALUES)
def test_interval_is_mirrored_when_the_two_models_change_places(values: list[float]) -> None:
    centre, low, high = median_shift_interval(values)
    assert median_shift_interval([-v for v in values]) == (-centre, -high, -low)


@pytest.mark.parametrize("n", range(1, 6))
def test_interval_is_infinite_when_there_are_fewer_than_six_values(n: int) -> None:
    assert median_shift_interval(np.ones(n)) == (1.0, -math.inf, math.inf)


@pytest.mark.parametrize("values", [[], [1.0] * 11 + [math.nan], [1.0] * 11 + [math.inf]])
def test_interval_says_nothing_when_values_are_missing_or_no_numbers(values: list[float]) -> None:
    centre, low, high = median_shift_interval(values)
    assert math.isnan(centre)
    assert (low, high) == (-math.inf, math.inf)


@pytest.mark.parametrize("n", [6, 7, 9, 10])
def test_interval_misses_zero_as_seldom_as_promised_when_all_signs_are_counted(n: int) -> None:
    """Equal models: whatever the distances are, each has either sign with the same chance. Here all cases are tried."""
    distances = np.random.default_rng(n).exponential(size=n) + 0.01 * np.arange(n)
    signs = np.array(list(itertools.islice(itertools.product((-1, 1), repeat=n), 2 ** (n - 1))))  # the rest is mirrored
    missed = np.mean([not low <= 0 <= high for _, low, high in map(median_shift_interval, signs * distances)])
    assert 0.01 < missed <= 0.05


def test_interval_is_hardly_moved_when_one_round_in_eight_is_wild() -> None:
    quiet = np.random.default_rng(0).normal(0.05, 0.01, 16)
    wild = quiet.copy()
    wild[:2] = 1.5
    assert median_shift_interval(wild)[2] < median_shift_interval(quiet)[2] + 0.01
    assert abs(median_shift_interval(wild)[0] - median_shift_interval(quiet)[0]) < 0.005


def test_rounds_to_resolve_are_about_enough_when_they_are_run() -> None:
    """About half of the races are resolved after as many rounds as they were told, and most after twice as many."""
    random = np.random.default_rng(1)
    once = twice = told = 0
    for _ in range(120):
        values = random.normal(0.03, 0.06, 12)
        interval = median_shift_interval(values)
        more = rounds_to_resolve(interval, 0.0, 12)
        if interval[1] > 0 or interval[0] <= 0.01 or more is None:
            continue
        told += 1
        later = np.concatenate([values, random.normal(interval[0], 0.06, 2 * more)])
        once += median_shift_interval(later[: 12 + more])[1] > 0
        twice += median_shift_interval(later)[1] > 0
    assert told > 40
    assert once / told > 0.35
    assert twice / told > 0.65


@pytest.mark.parametrize(
    ("interval", "more"),
    [
        ((0.02, -0.02, 0.06), 48),  # the lower end must come half as near
        ((-0.02, -0.06, 0.02), 48),
        ((0.005, -0.02, 0.03), None),  # below what is ever called different
        ((0.02, -math.inf, math.inf), None),
        ((math.nan, -math.inf, math.inf), None),
        ((0.05, 0.009, 0.09), 1),
        ((0.0101, -0.05, 0.07), None),  # millions
    ],
)
def test_rounds_to_resolve_are_told_when_a_number_would_do(
    interval: tuple[float, float, float], more: int | None
) -> None:
    bound = 0.0 if more == 48 else 0.01
    assert rounds_to_resolve(interval, bound, 16) == more


@pytest.mark.parametrize(("percentile", "least"), [(50, 5), (90, 29), (99, 299)])
def test_percentile_is_left_out_when_there_are_too_few_calls(percentile: float, least: int) -> None:
    assert percentile_bound(np.arange(least - 1), percentile) is None
    assert percentile_bound(np.arange(least), percentile) == least - 1


@pytest.mark.parametrize(("percentile", "n"), [(90, 30), (90, 100), (99, 300), (99, 1000), (99, 5000)])
def test_percentile_is_not_below_the_true_one_when_it_is_simulated(percentile: float, n: int) -> None:
    random = np.random.default_rng(5)
    draws = 500
    bounds = [percentile_bound(random.random(n), percentile) for _ in range(draws)]
    assert np.mean([bound >= percentile / 100 for bound in bounds]) >= 0.93
    if n >= 100 * 100 / (100 - percentile):  # with many calls it is also near
        assert np.mean(bounds) < (1 + percentile / 100) / 2


@pytest.mark.parametrize("kind", SESSIONS)
@pytest.mark.parametrize("noise", NOISES)
def test_equal_models_are_called_different_at_most_5_times_when_100_races_are_noisy(noise: str, kind: str) -> None:
    verdicts = [row.verdict for row in raced(NOISES[noise], 1.0, 0, SESSIONS[kind])]
    assert verdicts.count("not resolved") >= 0.95 * RACES


@pytest.mark.parametrize("kind", SESSIONS)
@pytest.mark.parametrize("noise", NOISES)
def test_seven_percent_are_found_nearly_always_when_100_races_are_noisy(noise: str, kind: str) -> None:
    verdicts = [row.verdict for row in raced(NOISES[noise], 1.07, 0, SESSIONS[kind])]
    assert verdicts.count("faster") >= RACES * MIN_FOUND[kind]
    assert verdicts.count("slower") == 0


@pytest.mark.parametrize("noise", NOISES)
def test_interval_holds_the_true_speedup_when_races_are_noisy(noise: str) -> None:
    found = raced(NOISES[noise], 1.05, seed=7)
    assert np.mean([row.speedup_low <= 1.05 <= row.speedup_high for row in found]) >= 0.9


def test_interval_holds_the_true_speedup_when_races_differ_as_well_as_rounds() -> None:
    """As two real races minutes apart: by a standard deviation of 1 to 2 %."""
    shifts = np.exp(0.015 * np.random.default_rng(3).standard_normal(RACES))
    found = [raced(normal, 1.5 * shift, seed, races=1)[0] for seed, shift in enumerate(shifts)]
    assert np.mean([row.speedup_low <= 1.5 <= row.speedup_high for row in found]) >= 0.93
