"""Error metrics between two outputs."""

import math

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array


def max_abs_error(actual: Array, expected: Array) -> float:
    """Return the largest absolute difference; NaN if any value is NaN (equal infinities have no difference).

    Strings have error 0 if all are equal, else infinity.
    """
    if expected.dtype.kind == "U":
        return 0.0 if np.array_equal(actual, expected) else math.inf
    with np.errstate(invalid="ignore"):
        a, b = actual.astype(np.float64), expected.astype(np.float64)
        difference = np.where(a == b, 0.0, np.abs(a - b))
    return float(np.max(difference, initial=0.0))


def max_rel_error(actual: Array, expected: Array) -> float:
    """Return the largest absolute difference over the largest expected magnitude of the whole tensor."""
    error = max_abs_error(actual, expected)
    if expected.dtype.kind == "U":
        return error
    return error / (float(np.max(np.abs(expected.astype(np.float64)), initial=0.0)) or 1.0)


def sqnr_db(actual: Array, expected: Array) -> float:
    """Return the signal to quantization noise ratio in dB: 10 log10(sum expected² / sum (actual - expected)²).

    It is infinite for equal arrays and NaN if any value is NaN.
    """
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    noise, signal = float(np.sum((a - b) ** 2)), float(np.sum(b**2))
    if math.isnan(noise) or math.isnan(signal):
        return math.nan
    if noise == 0:
        return math.inf
    return 10 * (math.log10(signal) - math.log10(noise)) if signal else -math.inf  # noise may be infinite


def top1_agreement(actual: Array, expected: Array) -> float:
    """Return the share of samples, along the first axis, for which both outputs predict the same.

    Floats predict the index of their largest value, so single floats always agree; other values must all be equal.
    """
    a, b = actual.reshape(len(actual), -1), expected.reshape(len(expected), -1)
    if a.dtype.kind == "f":
        return float(np.mean(a.argmax(1) == b.argmax(1)))
    return float(np.mean((a == b).all(1)))


def cosine(actual: Array, expected: Array) -> float:
    """Return the cosine similarity of two flattened outputs; 1 if both are zero, NaN if any value is NaN."""
    a, b = actual.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
    with np.errstate(invalid="ignore", over="ignore"):
        lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
        if lengths == 0:
            return 1.0 if np.array_equal(a, b) else 0.0
        return float(np.dot(a, b) / lengths)


def predicted_classes(output: Array, labels: tuple[str, ...] = ()) -> npt.NDArray[np.int64] | None:
    """Return the class predicted for each sample, shape (n,), or None if the output is no prediction.

    Scores of shape (n, classes) predict the index of the largest one; integers of shape (n,) or (n, 1) are classes;
    strings are looked up in `labels`, where unknown ones become -1.
    """
    single = output.ndim == 1 or (output.ndim == 2 and output.shape[1] == 1)
    if output.dtype.kind in "iu" and single:
        return output.reshape(len(output)).astype(np.int64)
    if output.dtype.kind == "U" and single:
        indices = {label: index for index, label in enumerate(labels)}
        return np.array([indices.get(str(text), -1) for text in output.ravel()], np.int64)
    if output.dtype.kind == "f" and output.ndim == 2 and not single:
        return np.asarray(output.argmax(1), np.int64)
    return None
