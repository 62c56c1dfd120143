"""The arithmetic of comparison: how far two outputs are apart."""

import math

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array


def max_abs_error(actual: Array, expected: Array) -> float:
    """Return the largest absolute difference; NaN where either holds one (equal infinities do not differ).

    Between texts it is 0 where they are equal, else infinite.
    """
    if expected.dtype.kind == "U":
        return 0.0 if np.array_equal(actual, expected) else math.inf
    with np.errstate(invalid="ignore"):
        a, b = actual.astype(np.float64), expected.astype(np.float64)
        difference = np.where(a == b, 0.0, np.abs(a - b))
    return float(np.max(difference, initial=0.0))


def max_rel_error(actual: Array, expected: Array) -> float:
    """Return the largest absolute difference over the largest expected magnitude.

    The scale is that of the whole tensor: a single logit near zero does not make an error large.
    """
    if expected.dtype.kind == "U":
        return max_abs_error(actual, expected)
    scale = float(np.max(np.abs(expected.astype(np.float64)), initial=0.0))
    return max_abs_error(actual, expected) / scale if scale else max_abs_error(actual, expected)


def sqnr_db(actual: Array, expected: Array) -> float:
    """Return the signal to quantisation noise ratio in decibels: 10 log10(sum expected² / sum (actual - expected)²).

    It is infinite for equal arrays and NaN where a value is.
    """
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    noise, signal = float(np.sum((a - b) ** 2)), float(np.sum(b**2))
    if math.isnan(noise) or math.isnan(signal):
        return math.nan
    if noise == 0:
        return math.inf
    return 10 * (math.log10(signal) - math.log10(noise)) if signal else -math.inf  # noise may be infinite


def top1_agreement(actual: Array, expected: Array) -> float:
    """Return the share of samples, along the first axis, on which both name the same.

    Floats name the place of their largest value, or, where there is only one, nothing that could differ; all else must
    be equal.
    """
    a, b = actual.reshape(len(actual), -1), expected.reshape(len(expected), -1)
    if a.dtype.kind == "f":
        return float(np.mean(a.argmax(1) == b.argmax(1)))
    return float(np.mean((a == b).all(1)))


def cosine(actual: Array, expected: Array) -> float:
    """Return the cosine between two outputs, taken as one vector each; 1 where both are zero, NaN where a value is."""
    a, b = actual.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
    with np.errstate(invalid="ignore", over="ignore"):
        lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
        if lengths == 0:
            return 1.0 if np.array_equal(a, b) else 0.0
        return float(np.dot(a, b) / lengths)


def predicted_classes(output: Array, labels: tuple[str, ...] = ()) -> npt.NDArray[np.int64] | None:
    """Return the class that each sample's output names, shape (n,), or None where it names none.

    Scores of shape (n, classes) name the largest one's place; whole numbers of shape (n,) or (n, 1) are the class
    itself; strings are looked up in `labels` (one that is not there becomes -1).
    """
    single = output.ndim == 1 or (output.ndim == 2 and output.shape[1] == 1)
    if output.dtype.kind in "iu" and single:
        return output.reshape(len(output)).astype(np.int64)
    if output.dtype.kind == "U" and single:
        places = {label: number for number, label in enumerate(labels)}
        return np.array([places.get(str(text), -1) for text in output.ravel()], np.int64)
    if output.dtype.kind == "f" and output.ndim == 2 and not single:
        found: npt.NDArray[np.int64] = output.argmax(1).astype(np.int64)
        return found
    return None
