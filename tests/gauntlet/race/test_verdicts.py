"""What a hundred races say on machines that jump and stutter: equal models are equal, and 5 % is found."""

import numpy as np
import pytest
from simulated_races import MIN_FOUND, NOISES, RACES, SESSIONS, raced


@pytest.mark.parametrize("kind", SESSIONS)
@pytest.mark.parametrize("noise", NOISES)
def test_equal_models_are_called_different_at_most_5_times_when_100_races_are_noisy(noise: str, kind: str) -> None:
    verdicts = [row.verdict for row in raced(NOISES[noise], 1.0, 0, SESSIONS[kind])]
    assert verdicts.count("not resolved") >= 0.95 * RACES


@pytest.mark.parametrize("kind", SESSIONS)
@pytest.mark.parametrize("noise", NOISES)
def test_five_percent_are_found_nearly_always_when_100_races_are_noisy(noise: str, kind: str) -> None:
    verdicts = [row.verdict for row in raced(NOISES[noise], 1.05, 0, SESSIONS[kind])]
    assert verdicts.count("faster") >= RACES * MIN_FOUND[kind]
    assert verdicts.count("slower") == 0


@pytest.mark.parametrize("noise", NOISES)
def test_interval_holds_the_true_speedup_when_races_are_noisy(noise: str) -> None:
    found = raced(NOISES[noise], 1.05, seed=7)
    assert np.mean([row.speedup_low <= 1.05 <= row.speedup_high for row in found]) >= 0.9
