"""How long a call takes by its number of rows, and the batch size that follows from it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from time import perf_counter

from gauntlet.runtime.timing import time_calls

FAST, SLOW = 1 / 4, 1 / 8
"""Gains of the smoothed deviation and mean (Jacobson and Karels, SIGCOMM 1988; RFC 6298)."""
DEVIATIONS = 4
"""Half of the predictions would be too short without a margin, and those are the requests that come too late."""


@dataclass
class Smoothed:
    """The mean and the mean deviation of values that change with time."""

    mean: float
    deviation: float = 0.0

    @property
    def most(self) -> float:
        """What the next value very likely stays below."""
        return self.mean + DEVIATIONS * self.deviation

    def observe(self, value: float) -> None:
        """Take one more value into account."""
        error = value - self.mean
        self.mean += SLOW * error
        self.deviation += FAST * (abs(error) - self.deviation)


class CostModel:
    """Seconds by rows, interpolated between measured batch sizes and scaled to what this machine shows now."""

    def __init__(self, seconds_by_rows: Mapping[int, float], max_rows: int) -> None:
        self.points = sorted(seconds_by_rows.items())
        self.max_rows = max_rows
        self._ratio = Smoothed(1.0)

    def call(self, rows: int) -> float:
        """Return the expected seconds of one call."""
        return self._curve(rows) * self._ratio.mean

    def wait(self, rows: int) -> float:
        """Return the seconds within which `rows` are very likely done, in calls of at most `max_rows`."""
        full, rest = divmod(rows, self.max_rows)
        return (full * self._curve(self.max_rows) + (self._curve(rest) if rest else 0)) * self._ratio.most

    def calibrate(self, rows: int, seconds: float) -> None:
        """Scale the curve, which may come from another machine, by one call on this one."""
        self._ratio = Smoothed(seconds / self._curve(rows))

    def observe(self, rows: int, seconds: float) -> None:
        """Adapt to one call."""
        self._ratio.observe(seconds / self._curve(rows))

    def _curve(self, rows: int) -> float:
        first, last = self.points[0], self.points[-1]
        if rows <= first[0]:
            return first[1]
        for (few, short), (many, long) in pairwise(self.points):
            if rows <= many:
                return short + (long - short) * (rows - few) / (many - few)
        return last[1] * rows / last[0]


def best_batch(seconds_by_rows: Mapping[int, float], deadline_s: float) -> int:
    """Return the batch size with most rows per second whose requests meet the deadline.

    A request may arrive just after a call began, so two calls must fit. Where none fits, it is the smallest batch.
    """
    fitting = {rows: rows / seconds for rows, seconds in seconds_by_rows.items() if 2 * seconds <= deadline_s}
    return max(fitting, key=lambda rows: (fitting[rows], rows)) if fitting else min(seconds_by_rows)


def measured_seconds(call: Callable[[int], object], budget_s: float = 0.3, most: int = 32) -> dict[int, float]:
    """Time one call of 1, 2, 4, ... rows until the time is spent; for a bundle without measured latencies."""
    seconds: dict[int, float] = {}
    rows, end = 1, perf_counter() + budget_s
    while rows <= most and (not seconds or perf_counter() + 2 * max(seconds.values()) < end):
        seconds[rows] = max(time_calls(partial(call, rows))[0][0] / 1000, 1e-6)
        rows *= 2
    return seconds
