"""The wealth is that of its definition, and a fair game gains nothing."""

import numpy as np
import pytest

from wings.lifecycle.library.monitoring import martingale
from wings.lifecycle.library.monitoring.martingale import FIRST, SCALE, wealth


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
