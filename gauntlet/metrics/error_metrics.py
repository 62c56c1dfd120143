"""Error metrics between two outputs."""

import math

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array


def max_abs_error(actual: Array, expected: Array) -> float:
    """Return the largest absolute difference; NaN if a value of only one of them is NaN.

    Equal infinities and equal NaNs do not differ: masked scores are -inf. Strings have error 0 if all are equal, else
    infinity.
    """
    if expected.dtype.kind == "U":
        return 0.0 if np.array_equal(actual, expected) else math.inf
    return float(np.max(np.abs(_differences(actual, expected)), initial=0.0))


def _differences(actual: Array, expected: Array) -> npt.NDArray[np.float64]:
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, a - b)


def _finite(array: Array) -> npt.NDArray[np.float64]:
    """Return the values with 0 in place of infinities and NaN."""
    values = array.astype(np.float64)
    return np.where(np.isfinite(values), values, 0.0)


def max_rel_error(actual: Array, expected: Array) -> float:
    """Return the largest absolute difference over the largest expected magnitude of the whole tensor."""
    error = max_abs_error(actual, expected)
    if expected.dtype.kind == "U":
        return error
    return error / (float(np.max(np.abs(_finite(expected)), initial=0.0)) or 1.0)


def sqnr_db(actual: Array, expected: Array) -> float:
    """Return the signal to quantization noise ratio in dB: 10 log10(sum expected² / sum (actual - expected)²).

    It is infinite for equal arrays, infinities and NaN included, and NaN if a value of only one of them is NaN.
    """
    noise, signal = float(np.sum(_differences(actual, expected) ** 2)), float(np.sum(_finite(expected) ** 2))
    if math.isnan(noise):
        return math.nan
    if noise == 0:
        return math.inf
    return 10 * (math.log10(signal) - math.log10(noise)) if signal else -math.inf  # noise may be infinite


def centered_sqnr_db(actual: Array, expected: Array) -> float:
    """Return the SQNR in dB with the signal's mean over the samples removed, for outputs of shape (n, ...).

    An output that is the same for every sample has at most 0 dB, however close it is to the mean. Where the expected
    outputs themselves do not depend on the sample, or there is one sample, nothing is removed.
    """
    mean = _finite(expected).mean(axis=0, keepdims=True)
    centered = expected.astype(np.float64) - mean
    return (
        sqnr_db(actual.astype(np.float64) - mean, centered) if np.any(_finite(centered)) else sqnr_db(actual, expected)
    )


def top1_agreement(actual: Array, expected: Array) -> float:
    """Return the share of samples, along the first axis, for which both outputs predict the same.

    Floats of shape (n, classes) predict the index of their largest value; others predict no class, and always agree.
    Integers and strings must all be equal.
    """
    a, b = actual.reshape(len(actual), -1), expected.reshape(len(expected), -1)
    if a.dtype.kind != "f":
        return float(np.mean((a == b).all(1)))
    return float(np.mean(a.argmax(1) == b.argmax(1))) if expected.ndim == 2 else 1.0


def cosine(actual: Array, expected: Array) -> float:
    """Return the cosine similarity of two flattened outputs; 1 if both are zero, NaN if any value is NaN.

    Equal infinities and equal NaNs are left out.
    """
    equal = (_differences(actual, expected) == 0) & ~np.isfinite(expected)
    a, b = (np.where(equal, 0.0, array.astype(np.float64)).ravel() for array in (actual, expected))
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
