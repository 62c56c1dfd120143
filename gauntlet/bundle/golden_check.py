"""Whether a bundle's model still gives its golden outputs."""

import math

from pydantic import Field

from gauntlet.bundle.predictor import Predictor
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.metrics.error_metrics import max_abs_error, max_rel_error


class GoldenDifference(Frozen):
    """The largest difference of one output from its golden values."""

    output: str
    max_abs_error: Number
    max_rel_error: Number = Field(description="over the largest magnitude of the golden output")


def golden_differences(predictor: Predictor) -> tuple[GoldenDifference, ...]:
    """Run the golden inputs in the predictor's session, and compare; a missing or misshapen output is infinitely off.

    Raises:
        StageError: when the runtime fails, or when there are no golden outputs to compare.
    """
    case = predictor.bundle.golden()
    if not case.outputs:
        raise StageError("the bundle has no golden outputs")
    return differences(predictor.run(case.inputs), case.outputs)


def differences(actual: NamedArrays, golden: NamedArrays) -> tuple[GoldenDifference, ...]:
    """Compare outputs with golden ones; a missing or misshapen output is infinitely off."""
    results = []
    for name, expected in golden.items():
        fits = name in actual and actual[name].shape == expected.shape
        errors = [kind(actual[name], expected) if fits else math.inf for kind in (max_abs_error, max_rel_error)]
        results.append(GoldenDifference(output=name, max_abs_error=errors[0], max_rel_error=errors[1]))
    return tuple(results)
