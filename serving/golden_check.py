"""Whether a bundle's model has its golden outputs on this processor, at the batch sizes that are served."""

import math
from collections.abc import Callable

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.datasets.golden import GoldenCase
from gauntlet.metrics.error_metrics import centered_sqnr_db, top1_agreement

MIN_SQNR_DB = 20.0
"""A float model has 100 dB and more on another processor, an INT8 model 30 dB and more unless its sums saturate."""
MIN_AGREEMENT = 0.98


def disagreement(run: Callable[[NamedArrays, int], NamedArrays], golden: GoldenCase, batches: set[int]) -> str | None:
    """Return what differs from the golden outputs, None where nothing does; `run` takes inputs and a batch size."""
    for batch in sorted(batches):
        try:
            outputs = run(golden.inputs, batch)
        except StageError as error:
            return f"batch {batch}: {error}"
        for name, expected in golden.outputs.items():
            problem = _difference(outputs[name], expected) if name in outputs else "the output is missing"
            if problem:
                return f"batch {batch}, output '{name}': {problem}"
    return None


def _difference(actual: Array, expected: Array) -> str | None:
    if actual.shape != expected.shape:
        return f"shape {list(actual.shape)} instead of {list(expected.shape)}"
    if expected.dtype.kind == "f":
        db = centered_sqnr_db(actual, expected)
        if math.isnan(db) or db < MIN_SQNR_DB:
            return f"{db:.1f} dB centered SQNR; at least {MIN_SQNR_DB:g} dB are needed"
    share = top1_agreement(actual, expected)
    return f"{share:.0%} of the samples agree; at least {MIN_AGREEMENT:.0%} must" if share < MIN_AGREEMENT else None
