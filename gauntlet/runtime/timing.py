"""The loop that times calls."""

from collections.abc import Callable
from time import perf_counter_ns, process_time_ns
from typing import TypeVar

T = TypeVar("T")
CLOCKS = {"wall": perf_counter_ns, "processor": process_time_ns}


def time_calls(
    call: Callable[[], T],
    at_least_ms: float = 0,
    *,
    least: int = 1,
    most: int | None = None,
    clock: Callable[[], int] = perf_counter_ns,
) -> tuple[list[float], T]:
    """Call for `at_least_ms`, `least` to `most` times; return all durations in milliseconds, and the last result."""
    samples: list[float] = []
    end = clock() + at_least_ms * 1e6
    while True:
        result = None  # frees the last result's memory outside the measured time
        start = clock()
        result = call()
        now = clock()
        samples.append((now - start) / 1e6)
        if len(samples) == most or (now >= end and len(samples) >= least):
            return samples, result
