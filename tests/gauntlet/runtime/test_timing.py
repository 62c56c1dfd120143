"""The loop that times calls ends when it is told to."""

from itertools import count
from time import sleep

import pytest

from gauntlet.runtime.timing import time_calls


@pytest.mark.parametrize(
    ("at_least_ms", "limits", "calls"),
    [(0, {}, 1), (0, {"least": 3}, 3), (1e9, {"most": 4}, 4), (0, {"least": 2, "most": 5}, 2)],
)
def test_calls_end_by_time_or_number(at_least_ms: float, limits: dict[str, int], calls: int) -> None:
    samples_ms, last = time_calls(count(1).__next__, at_least_ms, **limits)
    assert (len(samples_ms), last) == (calls, calls)


def test_every_call_is_timed_on_its_own() -> None:
    samples_ms, _ = time_calls(lambda: sleep(0.002), 10)
    assert len(samples_ms) <= 5
    assert min(samples_ms) >= 2
