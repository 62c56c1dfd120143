"""The one loop that times calls, for races and for quick looks alike."""

from collections.abc import Callable
from time import perf_counter_ns
from typing import TypeVar

T = TypeVar("T")


def time_calls(
    call: Callable[[], T], at_least_ms: float = 0, *, least: int = 1, most: int | None = None
) -> tuple[list[float], T]:
    """Call again and again; return every duration in milliseconds, and the last result.

    Args:
        call: what is timed.
        at_least_ms: how long to go on.
        least: calls that are made even if that takes longer.
        most: calls after which it ends in any case.
    """
    samples: list[float] = []
    end = perf_counter_ns() + at_least_ms * 1e6
    while True:
        result = None  # the last result's memory is given back outside the time
        start = perf_counter_ns()
        result = call()
        now = perf_counter_ns()
        samples.append((now - start) / 1e6)
        if len(samples) == most or (now >= end and len(samples) >= least):
            return samples, result
