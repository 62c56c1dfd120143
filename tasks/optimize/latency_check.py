"""A quick paired measurement of two models, which keeps a pass that slows a model down out of a chain."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from scipy.special import bdtr

from gauntlet.core.arrays import NamedArrays
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from gauntlet.runtime.timing import time_calls

ROUNDS = 9
"""Timed blocks of each model; a 95 % interval needs at least 6."""
BLOCK_MS = 15.0


def speed_ratio(before: Path, after: Path, inputs: NamedArrays) -> tuple[float, float, float]:
    """Return the speed of `after` in multiples of `before`: the median over rounds, and its 95 % interval.

    Both sessions alternate in this process, with one thread each: idle threads of one would spin on the cores where the
    other is timed. The interval inverts the sign test, without an assumption about the noise (Hahn and Meeker,
    Statistical Intervals, 1991, section 5.2).
    """
    runners = [_runner(path, inputs) for path in (before, after)]
    for run in runners:
        time_calls(run, BLOCK_MS)
    ratios: list[float] = []
    for number in range(ROUNDS):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        medians = {index: np.median(time_calls(runners[index], BLOCK_MS)[0]) for index in order}
        ratios.append(medians[0] / medians[1])
    ratios.sort()
    cut = _outer(ROUNDS)
    return float(np.median(ratios)), ratios[cut], ratios[-1 - cut]


def _outer(rounds: int) -> int:
    """Return how many of the lowest and of the highest values lie outside the 95 % interval of the median."""
    return next(outside for outside in range(rounds) if bdtr(outside + 1, rounds, 0.5) > 0.025)


def _runner(model: Path, inputs: NamedArrays) -> Callable[[], object]:
    prepared = batched_inference(open_session(model, threads=1), inputs)
    return partial(prepared.session.run, None, prepared.feed(0, prepared.batch(1)))
