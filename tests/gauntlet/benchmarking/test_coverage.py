"""The promises of `benchmarks/coverage.py`, at fixed seeds."""

import pytest
from coverage import coverage, family

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("rounds", "candidates", "share"), [(8, 1, 0.95), (10, 1, 0.8), (16, 20, 0.5), (24, 1, 0.0), (24, 20, 0.95)]
)
def test_interval_holds_the_speed_up_in_94_of_100_races(rounds: int, candidates: int, share: float) -> None:
    assert coverage(2000, rounds, candidates, share, seed=1) >= 0.94


@pytest.mark.parametrize("candidates", [1, 20])
def test_at_most_5_of_100_races_at_the_margin_choose_a_candidate(candidates: int) -> None:
    first, confirmed, bias = family(600, candidates, 16, 0.5, seed=1)
    assert confirmed <= 0.05
    if candidates == 20:
        assert first > 0.1  # the first race alone does not hold it
        assert abs(bias) <= 0.005
