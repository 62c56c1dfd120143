"""How far answers are from the exact ones, and which precision that is."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tasks.statistics import Array, sqnr_db
from tasks.targets.base import Precision

FLOOR_DB: dict[Precision, float] = {"f32": 90.0, "tf32": 57.0, "f16": 57.0, "bf16": 35.0, "int8": 20.0}
"""Least signal to noise of answers that were computed in a precision. Between float32 (about 127 dB were measured) and
the next coarser ones, with 10 bits of mantissa, there is nothing; bfloat16, with 7 bits, was measured at 46 to 53."""
ORDER: tuple[Precision, ...] = ("f32", "tf32", "f16", "bf16", "int8")
"""From fine to coarse."""
COARSE = {"tf32", "f16", "bf16"}
LEAST = 1e-30
LEAST_F16 = float(np.finfo(np.float16).tiny)
"""Probabilities below these are all the same: near the smallest numbers that a precision has."""
NAMES = (("f32", FLOOR_DB["f32"]), ("tf32 or f16", FLOOR_DB["f16"]), ("bf16", FLOOR_DB["bf16"]))


def distance_db(answers: Sequence[Array], expected: Sequence[Array], least: float | None = None) -> float:
    """Return the least signal to noise ratio of any output; NaN where outputs are missing or of another shape.

    Only floats count where there are any: a class or an index that differs says nothing of the precision.

    Args:
        answers: arrays of shape (n, ...).
        expected: the same, right.
        least: compare probabilities by their logarithms, none below this. Behind a Softmax that is sure of itself, the
            noise of 7 bits of mantissa is 119 dB away.
    """
    if [array.shape for array in answers] != [array.shape for array in expected]:
        return math.nan
    pairs = list(zip(answers, expected, strict=True))
    floats = [pair for pair in pairs if pair[1].dtype.kind == "f"]
    if not floats:
        return math.inf if all(np.array_equal(*pair) for pair in pairs) else -math.inf
    if least is not None:
        floats = [(_log(a, least), _log(b, least)) if _probabilities(b) else (a, b) for a, b in floats]
    return min((sqnr_db(*pair) for pair in floats), key=lambda value: -math.inf if math.isnan(value) else value)


def _log(array: Array, least: float) -> Array:
    return np.log(np.maximum(array.astype(np.float64), least))


def _probabilities(array: Array) -> bool:
    """Return whether an output of shape (n, ...) has no negative value, and sums of 1 along one of the other axes."""
    axes = [axis for axis in range(1, array.ndim) if array.shape[axis] > 1]
    return array.min(initial=0) >= 0 and any(np.allclose(array.sum(axis, np.float64), 1, atol=0.01) for axis in axes)


def named(value_db: float, kernels: Mapping[str, int]) -> str:
    """Return the precision that answers at this distance were computed in; the kernels' own word, where it is coarser.

    A network that averages much hides the difference between the coarse ones, never that there is one to float32.
    """
    place = next((place for place, (_, floor) in enumerate(NAMES) if value_db >= floor), None)
    if place is None:
        return "less than bf16"
    coarse = [name for name, _ in NAMES[place:] if set(kernels) & set(name.split(" or "))]
    return coarse[-1] if coarse else NAMES[place][0]
