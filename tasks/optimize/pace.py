"""Which of two graphs is faster: a quick paired measurement, to drop a pass that slows a model down.

The race decides what ships; this only keeps one bad pass from spoiling a chain.
"""

import math
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from pydantic import Field

from tasks.frozen import Frozen
from tasks.runtime.calls import Arrays, calls
from tasks.runtime.session import open_session


class Pace(Frozen):
    """How a pass is timed, and how much slower it may be."""

    max_slowdown: float = Field(
        0.02, ge=0, lt=1, description="a pass is dropped when it is proven slower by more than this share"
    )
    rounds: int = Field(9, ge=6, le=1000, description="turns of each; 6 is the least that gives a 95 % interval")
    block_ms: float = Field(15, gt=0, description="how long each of the two runs in a round")


def relative_speed(pace: Pace, before: Path, after: Path, inputs: Arrays) -> tuple[float, float, float]:
    """Return how fast `after` is, in multiples of `before`: the median over rounds, and its 95 % interval.

    Both sessions live in this process and take turns. Each has one thread: waiting threads of the one would spin on the
    cores that the other is timed on. The interval holds whatever the noise is: it is the sign test inverted (Hahn and
    Meeker, Statistical Intervals, 1991, section 5.2).
    """
    both = [_runner(path, inputs) for path in (before, after)]
    for run in both:
        _block_ns(run, pace.block_ms)
    ratios: list[float] = []
    for number in range(pace.rounds):
        first = number % 2
        taken = {place: _block_ns(both[place], pace.block_ms) for place in (first, 1 - first)}
        ratios.append(taken[0] / taken[1])
    ratios.sort()
    cut = _outer(pace.rounds)
    return float(np.median(ratios)), ratios[cut], ratios[-1 - cut]


def _outer(rounds: int) -> int:
    """Return how many of the lowest and of the highest values lie outside the 95 % interval of the median."""
    tail, outside = 0.5**rounds, 0  # chance that at most `outside` values lie below the median
    while (tail := tail + math.comb(rounds, outside + 1) * 0.5**rounds) <= 0.025:
        outside += 1
    return outside


def _runner(model: Path, inputs: Arrays) -> Any:
    session = open_session(model, threads=1)
    prepared = calls(session, inputs)
    feed = prepared.feed(0, prepared.batch(1))
    return lambda: session.run(None, feed)


def _block_ns(run: Any, block_ms: float) -> float:
    taken: list[int] = []
    end = perf_counter_ns() + int(block_ms * 1e6)
    while not taken or perf_counter_ns() < end:
        start = perf_counter_ns()
        run()
        taken.append(perf_counter_ns() - start)
    return float(np.median(taken))
