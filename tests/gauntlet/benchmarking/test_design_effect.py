"""What the rounds of one session say, when sessions differ, and when they do not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gauntlet.benchmarking.confidence import widen_interval
from gauntlet.benchmarking.design_effect import design_effect, process_generation


@given(rounds=st.integers(1, 200), least=st.integers(1, 20))
def test_rounds_are_shared_out_evenly_when_sessions_end(rounds: int, least: int) -> None:
    sessions = process_generation(rounds, least)
    lengths = np.bincount(sessions)
    assert sessions == sorted(sessions)
    assert lengths.sum() == rounds
    assert lengths.min() >= min(rounds, least)
    assert lengths.max() - lengths.min() <= 1


@pytest.mark.parametrize("rounds_per_session", [2, 3, 4])
def test_design_effect_nears_the_length_of_a_session_when_its_rounds_say_the_same(rounds_per_session: int) -> None:
    sessions = process_generation(12, rounds_per_session)
    speeds = np.random.default_rng(0).standard_normal((60, max(sessions) + 1))
    effects = [design_effect([speed[sessions] for speed in speeds[:field]], sessions) for field in (2, 60)]
    assert 1.2 < effects[0] < effects[1]
    assert rounds_per_session * 0.85 < effects[1] <= rounds_per_session


def test_design_effect_is_nearly_one_when_sessions_are_equal() -> None:
    random, sessions = np.random.default_rng(0), process_generation(16, 3)
    effects = [design_effect([*random.standard_normal((6, 16))], sessions) for _ in range(50)]
    assert np.median(effects) < 1.1
    assert min(effects) == 1


@given(seed=st.integers(0, 1000), power=st.integers(-6, 6))
def test_design_effect_is_the_same_when_the_ratios_are_turned_round_and_stretched(seed: int, power: int) -> None:
    sessions = process_generation(12, 3)
    ratios = np.random.default_rng(seed).standard_normal((3, 12))
    assert design_effect([*(-(2.0**power) * ratios)], sessions) == pytest.approx(design_effect([*ratios], sessions))


@pytest.mark.parametrize("sessions", [[0] * 6, list(range(6))])
def test_design_effect_is_one_when_nothing_tells_sessions_from_rounds(sessions: list[int]) -> None:
    assert design_effect([np.arange(6.0)], sessions) == 1
    assert design_effect([], process_generation(6, 3)) == 1


def test_interval_is_twice_as_wide_when_four_rounds_say_what_one_does() -> None:
    assert widen_interval((1.0, 0.5, 3.0), 4) == (1.0, 0.0, 5.0)
    assert widen_interval((1.0, -np.inf, np.inf), 4) == (1.0, -np.inf, np.inf)
    assert np.isnan(widen_interval((np.nan, -np.inf, np.inf), 1)[0])
    assert widen_interval((np.nan, -np.inf, np.inf), 1)[1:] == (-np.inf, np.inf)
