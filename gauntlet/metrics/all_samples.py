"""Compare all samples of the test split: what is wrong for one in a hundred is seldom among the few of other checks."""

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.ragged import is_ragged
from gauntlet.core.report import Check
from gauntlet.metrics.output_comparison import Tolerances, half_rounding, sample_errors

WIDER = 10
"""Times the limit of the few samples: of very many, some amplify rounding more."""
BY_CHANCE = 0.001
"""Share of the samples whose close scores, or value at a threshold, rounding may decide."""


def different_samples_check(
    name: str, limits: Tolerances, actual: NamedArrays, expected: NamedArrays, sets: Collection[str] = ()
) -> list[Check]:
    """Return the check of how many samples differ in the output, shape (n, ...), that is worst; none without any.

    There is none of lists either, as of boxes: rounding decides what is in them. `sets` are such outputs.
    """
    wrong = {output: _beyond(limits, output, actual, expected) for output in expected if output not in sets}
    if not wrong or any(map(is_ragged, expected.values())):
        return []
    worst = max(wrong, key=lambda output: wrong[output].sum())
    count, first = len(wrong[worst]), np.flatnonzero(wrong[worst])[:3].tolist()
    detail = f"{int(wrong[worst].sum())} of {count} test samples differ in '{worst}'"
    detail += f", such as {', '.join(map(str, first))}" if first else ""
    limit = "raise numerics.max_rel_error" if expected[worst].dtype.kind == "f" else "lower numerics.min_top1_agreement"
    fix = (
        f"look at what is special about these samples, and try another exporter or opset; if it is acceptable, {limit}"
    )
    allowed = max(BY_CHANCE, 1 - limits.agreement_limit(worst))
    return [Check.of(name, float(wrong[worst].mean()), "<=", allowed, detail, fix)]


def _beyond(limits: Tolerances, output: str, actual: NamedArrays, expected: NamedArrays) -> npt.NDArray[np.bool_]:
    values = expected[output]
    errors = sample_errors(actual[output], values)
    limit = max(WIDER * limits.error_limit(output), half_rounding(values)) if values.dtype.kind == "f" else 0.0
    return np.asarray(errors > limit)
