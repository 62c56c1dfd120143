"""Error metrics between two outputs."""

import math
import zlib

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array
from gauntlet.datasets.truth import SIGN_NAMES

ROUNDING = 0.01
"""How far rounded probabilities may lie outside of 0 to 1: a step of eight bits is 0.004."""
UNIT_AXES, UNIT_COLUMNS, UNIT_SHARE = 3, 8, 0.05
"""Tables, boxes and key points have columns of several units, each of this share of them at least; maps, if few."""
UNIT_GAP, UNIT_NOISE, CONSTANT = 2500, 1e-12, 1e-4
"""As shares of a variance: how much less a unit varies than all others, what may be rounding, and a constant's of its
mean square. They are factors of 50, 1e-6 and 0.01 of what the numbers vary by."""


def max_abs_error(actual: Array, expected: Array) -> float:
    """Return the largest absolute difference; NaN if a value of only one of them is NaN.

    Equal infinities and equal NaNs do not differ: masked scores are -inf. Strings have error 0 if all are equal, else
    infinity.
    """
    if expected.dtype.kind == "U":
        return 0.0 if np.array_equal(actual, expected) else math.inf
    return float(np.max(np.abs(differences(actual, expected)), initial=0.0))


def differences(actual: Array, expected: Array) -> npt.NDArray[np.float64]:
    """Return the differences as float64; equal infinities and equal NaNs do not differ."""
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, a - b)


def finite(array: Array) -> npt.NDArray[np.float64]:
    """Return the values as float64, with 0 in place of infinities and NaN."""
    values = array.astype(np.float64)
    return np.where(np.isfinite(values), values, 0.0)


def max_rel_error(actual: Array, expected: Array) -> float:
    """Return the largest absolute difference over the largest expected magnitude of the whole tensor."""
    error = max_abs_error(actual, expected)
    if expected.dtype.kind == "U":
        return error
    return error / (float(np.max(np.abs(finite(expected)), initial=0.0)) or 1.0)


def output_scale(expected: Array) -> float:
    """Return what the differences of an output are measured against: its range, or a tenth of its largest magnitude.

    The larger of the two counts. The tenth is for outputs that hardly vary around a large value: float32 rounds them to
    a share of that value. It is 1 for an output that is zero throughout.
    """
    values = finite(expected)
    if not values.size:
        return 1.0
    return float(max(np.ptp(values), np.max(np.abs(values)) / 10)) or 1.0


def value_scales(expected: Array) -> npt.NDArray[np.float64]:
    """Return the `output_scale` of each number's unit, in a shape that broadcasts against outputs of shape (n, ...)."""
    scales, values = np.full((1,) * expected.ndim, output_scale(expected)), finite(expected)
    for axis in unit_axes(expected):
        rest = tuple(other for other in range(expected.ndim) if other != axis)
        unit = units_of(values.var(axis=rest), (values**2).mean(axis=rest))
        own = np.array([output_scale(np.compress(unit == number, expected, axis)) for number in range(unit.max() + 1)])
        scales = np.minimum(scales, np.expand_dims(own[unit], rest))
    return scales


def unit_axes(expected: Array) -> tuple[int, ...]:
    """Return the axes of outputs, shape (n, ...), whose slices may be of several units; none of shares of 1."""
    if within_unit(np.abs(expected)):
        return ()
    last = expected.ndim - 1
    ends = (axis for axis in (1, last) if 1 < expected.shape[axis] <= UNIT_COLUMNS)  # a map's channels
    return tuple(range(1, last + 1)) if last < UNIT_AXES else tuple(ends)


def units_of(signal: npt.NDArray[np.float64], level: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the number of the unit that each slice is in, by its variance and mean square; 0 where all have one.

    Pixels and a score, or a price and a rating, may be columns of one output. Slices that vary much less than all
    others, alike, and not only by rounding, are of a unit of their own if they are several percent of all. The units
    of few slices may differ by degrees, without a gap, so that none of them spans more than one.
    """
    unit = np.zeros(signal.shape, np.int64)
    order = np.flatnonzero((signal > UNIT_NOISE * signal.max(initial=0)) & (signal >= CONSTANT * level))
    order = order[np.argsort(-signal[order])]
    steps, top = (1 + np.flatnonzero(signal[order][:-1] > UNIT_GAP * signal[order][1:])).tolist(), 0
    if len(signal) <= UNIT_COLUMNS:
        steps = [top := place for place in range(len(order)) if signal[order[top]] > UNIT_GAP * signal[order[place]]]
    for part in np.split(order, steps)[1:]:
        if len(part) >= UNIT_SHARE * len(signal) and signal[part[0]] <= UNIT_GAP * signal[part[-1]]:
            unit[part] = unit.max() + 1
    return unit


def max_normalized_error(actual: Array, expected: Array) -> float:
    """Return the largest absolute difference of numbers, shape (n, ...), over their `value_scales`."""
    return float(np.max(np.abs(differences(actual, expected)) / value_scales(expected), initial=0.0))


def sqnr_db(actual: Array, expected: Array) -> float:
    """Return the signal to quantization noise ratio in dB: 10 log10(sum expected² / sum (actual - expected)²).

    It is infinite for equal arrays, infinities and NaN included, and NaN if a value of only one of them is NaN.
    """
    noise, signal = float(np.sum(differences(actual, expected) ** 2)), float(np.sum(finite(expected) ** 2))
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
    mean = finite(expected).mean(axis=0, keepdims=True)
    one, other = actual.astype(np.float64) - mean, expected.astype(np.float64) - mean
    return sqnr_db(one, other) if np.any(finite(other)) else sqnr_db(actual, expected)


def top1_agreement(actual: Array, expected: Array) -> float:
    """Return the share of samples, along the first axis, for which both outputs predict the same.

    Floats of shape (n, classes) predict the index of their largest value; others predict no class, and always agree.
    Integers and strings must all be equal.
    """
    a, b = actual.reshape(len(actual), -1), expected.reshape(len(expected), -1)
    if a.dtype.kind != "f":
        return float(np.mean((a == b).all(1)))
    return float(np.mean(a.argmax(1) == b.argmax(1))) if expected.ndim == 2 else 1.0


def within_unit(values: Array) -> bool:
    """Return whether all values may be probabilities, which may be rounded."""
    return not values.size or bool(values.min() >= -ROUNDING and values.max() <= 1 + ROUNDING)


def scores_per_class(output: Array) -> Array:
    """Return a score for each of two classes where an output, shape (n,) or (n, 1), holds probabilities of the second.

    These may be rounded, and end at 0 and 1. Other outputs are returned as they are.
    """
    if not output.size or output.size != len(output) or output.dtype.kind != "f":
        return output
    if not within_unit(output[~np.isnan(output)]):  # of others, NaN tells nothing
        return output
    values: Array = output.reshape(-1, 1)
    return np.concatenate([1 - values, values], axis=1).clip(0, 1)


def predicted_classes(output: Array, labels: tuple[str, ...] = ()) -> npt.NDArray[np.int64] | None:
    """Return the class predicted for each sample, shape (n,), or None if the output is no prediction.

    Scores of shape (n, classes) predict the index of the largest one; those of shape (n, positions, classes) predict
    one for each position, shape (n, positions). Integers of shape (n,) or (n, 1) are classes. Strings are looked up in
    `labels`, where unknown ones become -1, as are integers where the labels are -1 and 1; without labels, strings
    become their checksums.
    """
    single = output.ndim == 1 or (output.ndim == 2 and output.shape[1] == 1)
    if output.dtype.kind in "iu" and single and labels == SIGN_NAMES:
        output = output.astype(np.str_)
    if output.dtype.kind in "iu" and single:
        return output.reshape(len(output)).astype(np.int64)
    if output.dtype.kind == "U" and single:
        indices = {label: index for index, label in enumerate(labels)}
        texts = [str(text) for text in output.ravel()]
        return np.array([indices.get(t, -1 if labels else zlib.crc32(t.encode())) for t in texts], np.int64)
    if output.dtype.kind == "f" and output.ndim in (2, 3) and not single and output.shape[-1]:
        return np.asarray(output.argmax(-1), np.int64)
    return None
