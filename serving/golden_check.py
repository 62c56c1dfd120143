"""Whether a bundle's model has its golden outputs on this processor, at the batch sizes that are served."""

import math
from collections.abc import Callable

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.datasets.golden import GoldenCase, samples_in_turns
from gauntlet.metrics.error_metrics import centered_sqnr_db, finite, top1_agreement
from gauntlet.metrics.output_noise import OutputNoise, output_noise

MIN_SQNR_DB = 20.0
"""A float model has 100 dB and more on another processor, an INT8 model 30 dB and more unless its sums saturate."""
MIN_AGREEMENT = 0.98
EXTREME = 1e4
"""Times the largest golden value: what a row must not notice in the rows beside it."""
MAX_CHANGE = 1e-5
"""Largest difference that other rows may make, over the output's largest value: sums may be in another order."""


def disagreement(run: Callable[[NamedArrays, int], NamedArrays], golden: GoldenCase, batches: set[int]) -> str | None:
    """Return what differs from the golden outputs, None where nothing does; `run` takes inputs and a batch size."""
    for batch in sorted(batches):
        rows = max(batch, len(next(iter(golden.inputs.values()))))
        try:
            outputs = run(samples_in_turns(golden.inputs, rows), batch)
        except StageError as error:
            return f"batch {batch}: {error}"
        for name, expected in samples_in_turns(golden.outputs, rows).items():
            problem = _difference(outputs[name], expected) if name in outputs else "the output is missing"
            if problem:
                return f"batch {batch}, output '{name}': {problem}"
    return None


def keeps_rows_apart(run: Callable[[NamedArrays, int], NamedArrays], inputs: NamedArrays, batch: int) -> bool:
    """Tell whether golden rows have the same outputs beside other golden rows and beside extreme ones.

    A dynamically quantized model, for example, takes its scale from all rows of a call. A model that refuses extreme
    rows is not proven to keep rows apart. `batch`, from 2, is the number of rows of a call.
    """
    usual = samples_in_turns(inputs, batch)
    try:
        expected = run(usual, batch)
        others = (_largest, lambda array: np.negative(_largest(array)), np.zeros_like, _permuted)
        return all(_are_same(run(_beside(usual, other), batch), expected) for other in others)
    except StageError:
        return False


def _beside(usual: NamedArrays, other: Callable[[Array], Array]) -> NamedArrays:
    """Return the inputs with every second row replaced."""
    inputs = {name: array.copy() for name, array in usual.items()}
    for array in inputs.values():
        array[1::2] = (other if array.dtype.kind == "f" else _permuted)(array)[1::2]
    return inputs


def _largest(array: Array) -> Array:
    largest = EXTREME * (1 + float(np.abs(finite(array)).max(initial=0)))
    return np.full_like(array, min(float(np.finfo(str(array.dtype)).max), largest))


def _permuted(array: Array) -> Array:
    """Return the rows in another order: integers, which may be indices, and texts are not made up."""
    return np.roll(array, 1, axis=0)


def _are_same(actual: NamedArrays, expected: NamedArrays) -> bool:
    """Tell whether the rows that were not replaced have the same outputs."""
    for name, array in expected.items():
        other, mine = actual[name][::2], array[::2]
        if other.shape != mine.shape:
            return False
        if mine.dtype.kind != "f":
            same = np.array_equal(other, mine)
        else:
            largest = float(np.abs(mine[np.isfinite(mine)]).max(initial=0))
            same = np.allclose(other, mine, rtol=0, atol=MAX_CHANGE * largest, equal_nan=True)
        if not same:
            return False
    return True


def _difference(actual: Array, expected: Array) -> str | None:
    if actual.shape != expected.shape:
        return f"shape {list(actual.shape)} instead of {list(expected.shape)}"
    if expected.dtype.kind == "f":
        db = centered_sqnr_db(actual, expected)
        if math.isnan(db) or db < MIN_SQNR_DB:
            return f"{db:.1f} dB centered SQNR; at least {MIN_SQNR_DB:g} dB are needed"
        worst = output_noise(actual, expected) if expected.ndim == 2 else OutputNoise(db)
        if worst.sqnr_db <= 0:
            return f"{worst.sqnr_db:.1f} dB at {worst.place}, where a constant would be as good"
    share = top1_agreement(actual, expected)
    return f"{share:.0%} of the samples agree; at least {MIN_AGREEMENT:.0%} must" if share < MIN_AGREEMENT else None
