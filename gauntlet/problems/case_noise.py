"""The noise of a candidate at other sizes and lengths of its inputs than those of the test split."""

from collections.abc import Callable, Mapping

import numpy as np

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.report import Check
from gauntlet.datasets.golden import RANDOM, REAL, GoldenCase
from gauntlet.metrics.output_noise import output_noise
from gauntlet.problems.accuracy_comparison import AccuracyLimits
from gauntlet.problems.base import Problem

NAME = "accuracy.min_case_sqnr_db"
FIX = "calibrate on samples of these lengths too, leave sensitive nodes in float, or fix the axis in the model"


def case_noise_check(
    limits: AccuracyLimits,
    problem: Problem,
    cases: Mapping[str, GoldenCase],
    run: Callable[[NamedArrays], NamedArrays],
) -> tuple[Check, ...]:
    """Check the SQNR of each float output in each golden case but those of the data's own size; none without any.

    `run` returns the candidate's outputs for some inputs; `cases` hold those that its noise is measured against.
    Outputs whose rows are a set of boxes have no SQNR.
    """
    decode, read = problem.signature.decode, problem.outputs_read
    sets = decode.outputs if decode is not None and decode.has_sets else ()
    noise: dict[tuple[str, str], float] = {}
    for title, case in cases.items():
        floats = [name for name, array in case.outputs.items() if array.dtype.kind == "f" and name not in sets]
        if title in (REAL, RANDOM) or not floats:
            continue
        try:
            outputs = run(case.inputs)
        except StageError as error:
            return (Check.of(NAME, None, ">=", limits.min_sqnr_db, f"at {title}: {error}", FIX),)
        noise |= {(title, name): output_noise(outputs[name], case.outputs[name]).sqnr_db for name in floats}
    if not noise:
        return ()
    floors = {place: limits.min_sqnr_db if place[1] in read else limits.min_values_sqnr_db for place in noise}
    worst = min(noise, key=lambda place: np.nan_to_num(noise[place] - floors[place], nan=-np.inf))
    judged = "; ".join(dict.fromkeys(title for title, _ in noise))
    detail = f"output '{worst[1]}' at {worst[0]}; judged: {judged}"
    return (Check.of(NAME, noise[worst], ">=", floors[worst], detail, FIX, unit="dB"),)
