"""Noise of an output against what it varies by: of the whole, and of every slice along every axis.

One sum over a tensor sees its largest numbers only. A detector's output with boxes in pixels and scores from 0 to 1 has
an excellent sum where all scores are lost. So each slice (a channel, a column, a class) is measured against its own
spread, and almost all of them must be good. A single one that varies like the others, and has more noise than that,
counts alone.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, Floats
from gauntlet.core.ragged import comparable, paired
from gauntlet.metrics.error_metrics import differences, finite, unit_axes, units_of

SHARE = 0.98
"""Of the slices along an axis, this share is at least as good as the value of the axis: all of fewer than 50."""
FAINT = 0.1
"""A slice with less than this share of the usual slice's spread is nearly constant, and judged by its level."""
ABSENT = 0.001
"""A slice with less than this share of the largest spread is of a class that no sample shows."""
EXTREME = 0.05
"""Where this share of the samples has most of the energy, the others are judged by themselves, too."""


@dataclass(frozen=True)
class OutputNoise:
    """Signal-to-noise ratio of an output, and where it is least."""

    sqnr_db: float
    """In decibels: of the whole or of the slices along an axis, the least. NaN where a value of only one is NaN."""
    place: str = ""
    """The slice, counted as in NumPy: `[:, 4]`; empty for the whole."""


def output_noise(actual: Array, expected: Array, *, read: bool = True) -> OutputNoise:
    """Compare outputs of shape (n, ...), of one shape, with the expected ones; of ragged ones, those of equal length.

    The signal is what the expected output varies by over the samples: an output that is the same for every sample has
    at most 0 dB. Where the expected one itself does not vary, or there is one sample, the signal is its level.
    A slice with half of the usual energy counts alone if it is no better than a constant. Where predictions are not
    `read` from the output, and its values are the result, so does every slice that is not nearly constant.
    """
    actual, expected, alike = paired(actual, expected)
    if alike is not None:
        actual, expected = actual[alike], expected[alike]
    signal, level, noise = _energies(actual, expected)
    if math.isnan(noise.sum()) or not len(expected):
        return OutputNoise(math.nan)
    whole, axes = signal.sum() or level.sum(), unit_axes(expected)
    values = [OutputNoise(float(_decibels(whole, noise.sum())))]
    for axis, own, unit, spread in _by_axis(signal, level, axes):
        ratios = _decibels(spread, _along(noise, axis))
        index = int(np.argsort(ratios)[int((1 - SHARE) * len(ratios))])
        lost = np.where(own >= (0.5 if read else FAINT**2) * _of_unit(own, unit), ratios, np.inf)
        if lost.min() <= 0:  # the mean of all samples would be as good
            index = int(lost.argmin())
        values.append(OutputNoise(float(ratios[index]), f"[{':, ' * (axis + 1)}{index}]"))
    return min(values, key=lambda value: value.sqnr_db)


def usual_samples(values: Array) -> npt.NDArray[np.bool_] | None:
    """Return which samples are left, shape (n,), without the most extreme ones of values of shape (n, ...).

    Prices, counts and durations have heavy tails: a few samples are most of what the values vary by, so that a sum over
    all of them says nothing of the others. None where that is not so.
    """
    if not len(values):
        return None
    mean = finite(values).mean(axis=0)
    energy = np.array([((finite(value) - mean) ** 2).sum() for value in values])
    extreme = energy > np.quantile(energy, 1 - EXTREME)
    return ~extreme if energy[extreme].sum() > energy.sum() / 2 else None


def usual_noise(actual: Array, expected: Array) -> OutputNoise:
    """Compare the usual samples alone; infinite where there are no extreme ones.

    They vary by at least a tenth of what all do: an output may be nearly constant but for a few samples.
    """
    if (usual := usual_samples(expected)) is None:
        return OutputNoise(math.inf)
    signal, _, noise = (float(energy.sum()) for energy in _energies(actual[usual], expected[usual]))
    all_samples = float(_energies(expected, expected)[0].sum())
    place = " (without the most extreme samples)"
    return OutputNoise(float(_decibels(max(signal, FAINT**2 * all_samples * usual.mean()), noise)), place)


def worst_noise_db(outputs: Sequence[Array], expected: Sequence[Array]) -> float:
    """Return the least ratio of any output in decibels; NaN where one is missing or has another shape.

    Other outputs than floats count only where there are no floats: they are equal (infinite) or not (-infinite).
    """
    if not (pairs := comparable(outputs, expected)):
        return math.nan
    floats = [output_noise(*pair).sqnr_db for pair in pairs if pair[1].dtype.kind == "f"]
    equal = math.inf if all(np.array_equal(*pair) for pair in pairs) else -math.inf
    return float(np.min(floats)) if floats else equal


def sample_noise_db(actual: Array, expected: Array) -> Floats:
    """Return for each sample the ratio in decibels, shape (n,): its noise against the spread of the mean sample."""
    (signal, level, _), axes = _energies(expected, expected), unit_axes(expected)
    squares = differences(actual, expected) ** 2
    worst = _decibels(signal.sum() or level.sum(), len(expected) * squares.reshape(len(expected), -1).sum(axis=1))
    for axis, own, _, spread in _by_axis(signal, level, axes):
        noise = np.moveaxis(squares, axis + 1, 1).reshape(len(squares), len(own), -1).sum(axis=2)
        ratios = np.sort(_decibels(spread, len(expected) * noise), axis=1)
        worst = np.minimum(worst, ratios[:, int((1 - SHARE) * len(own))])
    return worst


def worst_sample_db(actual: Array, expected: Array) -> float:
    """Return the least ratio of a sample in decibels: its noise against its own variation, at least the mean one.

    Of ragged outputs, those of equal length count. NaN where a value of only one is NaN.
    """
    actual, expected, alike = paired(actual, expected)
    if alike is not None:
        actual, expected = actual[alike], expected[alike]
    if not expected.size:
        return math.inf
    signal, level, _ = _energies(expected, expected)
    mean = (signal.sum() or level.sum()) / len(expected)
    own = ((finite(expected) - finite(expected).mean(axis=0)) ** 2).reshape(len(expected), -1).sum(axis=1)
    noise = (differences(actual, expected) ** 2).reshape(len(expected), -1).sum(axis=1)
    return float(np.min(_decibels(np.maximum(own, mean), noise)))


def _energies(actual: Array, expected: Array) -> tuple[Floats, Floats, Floats]:
    """Return for each value of a sample the sums over the samples: centered squares, squares, squared differences."""
    mean = finite(expected).mean(axis=0)
    signal, level, noise = np.zeros((3, *mean.shape))
    for before, after in zip(expected, actual, strict=True):  # float64 copies of one sample at a time
        values = finite(before)
        signal += (values - mean) ** 2
        level += values**2
        noise += differences(after, before) ** 2
    return signal, level, noise


def _along(energy: Floats, axis: int) -> Floats:
    return np.asarray(np.moveaxis(energy, axis, 0).reshape(energy.shape[axis], -1).sum(axis=1))


def _by_axis(
    signal: Floats, level: Floats, axes: Sequence[int]
) -> Iterator[tuple[int, Floats, npt.NDArray[np.int64], Floats]]:
    """Yield each axis with several slices: the slices' signal, units, and what their noise is measured against."""
    for axis, length in enumerate(signal.shape):
        if length > 1:
            own, of_level = _along(signal, axis), _along(level, axis)
            unit = units_of(own, of_level) if axis + 1 in axes else np.zeros(length, np.int64)
            yield axis, own, unit, _slice_signal(own, of_level, unit)


def _of_unit(signal: Floats, unit: npt.NDArray[np.int64]) -> Floats:
    """Return for each slice what those of its unit that vary usually have; 0 where none does."""
    parts = (signal[(unit == number) & (signal > 0)] for number in range(unit.max() + 1))
    return np.array([_usual(part) if part.size else 0.0 for part in parts])[unit]


def _usual(signal: Floats) -> float:
    """Return the median; where most slices are of classes that no sample shows, that of the others."""
    shown = signal[signal >= ABSENT**2 * signal.max()]
    return float(np.median(shown if 2 * len(shown) < len(signal) else signal))


def _slice_signal(signal: Floats, level: Floats, unit: npt.NDArray[np.int64]) -> Floats:
    """Return the energy that the noise of each slice is measured against, shape (slices,)."""
    if not signal.any():
        return level
    least = FAINT**2 * _of_unit(signal, unit)
    return np.where(signal >= least, signal, np.maximum(level, least))


def _decibels(signal: Floats | float, noise: Floats | float) -> Floats:
    """Return 10 log10(signal / noise): infinite without noise, NaN where the noise is NaN."""
    signal, noise = np.broadcast_arrays(np.asarray(signal, np.float64), np.asarray(noise, np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = 10 * (np.log10(signal) - np.log10(noise))
    return np.where(noise == 0, np.inf, ratios)
