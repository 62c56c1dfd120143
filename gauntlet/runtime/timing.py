"""The loop that times calls."""

from collections.abc import Callable
from time import perf_counter_ns
from typing import TypeVar

T = TypeVar("T")


def time_calls(
    call: Callable[[], T], at_least_ms: float = 0, *, least: int = 1, most: int | None = None
) -> tuple[list[float], T]:
    """Call for `at_least_ms`, `least` to `most` times; return all durations in milliseconds, and the last result."""
    samples: list[float] = []
    end = perf_counter_ns() + at_least_ms * 1e6
    while True:
        result = None  # frees the last result's memory outside the measured time
        start = perf_counter_ns()
        result = call()
        now = perf_counter_ns()
        samples.append((now - start) / 1e6)
        if len(samples) == most or (now >= end and len(samples) >= least):
            return samples, result
