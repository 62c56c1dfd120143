"""Choose the range whose quantised values tell most about the real ones: the method of TensorRT's calibrator."""

from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from gauntlet.calibration.histogram import Counts, TensorStatistics
from gauntlet.core.frozen import Frozen

LEVELS = 128
"""Bins of the quantised distribution; one for each step of a signed byte's positive half."""
EPSILON = 1e-4
"""The share that a bin without values gets, so that the divergence stays finite."""
CLOSE = 1e-5
"""How much further than the best, over one plus the best, a fast divergence may be for the width to be looked at again.
The float32 sums of the plain form were at most 1e-6 away from the fast form in the tests."""
TERMS = 6
"""Of the series of (c - t) log(c - t) in t, which stays below 0.21: what is left out is less than 1e-6 of a value."""

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


class Entropy(Frozen):
    """The range around zero with the least Kullback-Leibler divergence between real and quantised distribution.

    After S. Migacz, "8-bit Inference with TensorRT" (GTC 2017, talk S7310), with the arithmetic of ORT's
    `EntropyCalibrater`, bin for bin. `quantize_static` gives that calibrator as many bins as levels, 128, so it has one
    range to choose from, the whole one, and always answers as MinMax does. Here there are 2048, as in TensorRT.
    """

    kind: Literal["entropy"] = "entropy"
    counts: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The method's name in files and in candidates' names."""
        return "entropy"

    def range_of(self, seen: TensorStatistics) -> tuple[np.float32, np.float32]:
        """Return the range."""
        if seen.histogram is None:
            return seen.lowest, seen.highest
        counts, edges = seen.histogram
        half, width = len(counts) // 2, best_width(counts)
        return seen.within(edges[half - width], edges[min(half + width + 1, len(counts))])


def widths(counts: Counts) -> npt.NDArray[np.int64]:
    """Return the ranges to choose from: so many bins on both sides of zero, nearly a thousand of them."""
    return np.arange(LEVELS // 2, len(counts) // 2 + 1)


def best_width(counts: Counts) -> int:
    """Return the width that ORT's search would find, without making two distributions for each.

    All divergences are found at once from cumulated sums, in float64. ORT's float32 sums round, which decides between
    nearly equal widths, so the few that are close to the best are compared as ORT does.
    """
    near, choices = divergences(counts), widths(counts)
    best = near.min()
    choices = choices[near <= best + CLOSE * (1 + best)]
    return int(choices[np.argmin([divergence(counts, width) for width in choices])])


def divergence(counts: Counts, width: int) -> np.float32:
    """Return the divergence when only the bins up to `width` from the middle keep a place of their own."""
    half, bins = len(counts) // 2, len(counts)
    start, end = half - width, min(half + width + 1, bins)
    inside = counts[start:end]
    real = inside.copy()
    real[0] += counts[:start].sum()
    real[-1] += counts[end:].sum()
    merged = real.size // LEVELS  # bins a level; the values of those that are left over join the last level
    whole = merged * LEVELS
    sums = inside[:whole].reshape(LEVELS, merged).sum(axis=1)
    sums[-1] += inside[whole:].sum()
    filled = np.count_nonzero(real[:whole].reshape(LEVELS, merged), axis=1)
    level = np.where(filled, sums / np.maximum(filled, 1), 0).astype(np.int64)  # cut to whole numbers, as ORT does
    quantised = np.zeros_like(real)
    quantised[:whole] = np.repeat(level, merged)
    if not (real.any() and quantised.any()):
        return np.float32(np.inf)
    p, q = _smooth(real), _smooth(quantised)
    p /= p.sum()
    q /= q.sum()
    return np.float32(np.sum(p * np.log(p / q)))


def _smooth(counts: Counts) -> Floats:
    """Take a little from the bins with values and give it to those without."""
    empty = counts == 0
    missing = np.count_nonzero(empty)
    smooth: Floats = counts.astype(np.float32)
    smooth -= np.float32(EPSILON * missing / (counts.size - missing))
    smooth[empty] = EPSILON
    return smooth


def divergences(counts: Counts) -> Doubles:
    """Return the divergence of every width, shape (widths,), as `divergence` does but for its rounding.

    With r and q the smoothed real and quantised counts, and R and Q their sums, it is
    (sum of r log r - sum of r log q) / R + log(Q / R). The first sum comes from cumulated sums over the bins,
    the second has one term a level.
    """
    half, bins, width = len(counts) // 2, len(counts), widths(counts)
    start, end = half - width, np.minimum(half + width + 1, bins)
    size = end - start
    total, filled = _cumulated(counts), _cumulated(counts != 0)
    first, last = total[start + 1], total[-1] - total[end - 1]  # with all that lies outside
    present = filled[end - 1] - filled[start + 1] + (first > 0) + (last > 0)
    taken = EPSILON * (size - present) / present

    merged = size // LEVELS
    ends = start[:, None] + merged[:, None] * np.arange(LEVELS + 1)
    inside, places = np.diff(total[ends]), np.diff(filled[ends])
    places[:, 0] += (first > 0) & (counts[start] == 0)
    real = inside - taken[:, None] * places + EPSILON * (merged[:, None] - places)
    real[:, 0] += total[start]
    inside[:, -1] += total[end] - total[ends[:, -1]]
    level = np.where(places, inside / np.maximum(places, 1), 0).astype(np.int64)
    used = merged * np.count_nonzero(level, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):  # where no level has a value
        given = EPSILON * (size - used) / used
        quantised = np.log(np.where(level, level - given[:, None], EPSILON))
        own = _own(counts, start + 1, end - 1, taken) + _x_log_x(first, taken) + _x_log_x(last, taken)
        own += EPSILON * np.log(EPSILON) * (size - present)
        crossed = (real * quantised).sum(axis=1) + (total[-1] - real.sum(axis=1)) * np.log(EPSILON)
        shrunk = np.log(merged * level.sum(axis=1) / total[-1])
        found = (own - crossed) / total[-1] + shrunk
    return np.where(used > 0, found, np.inf)


def _own(counts: Counts, start: npt.NDArray[np.int64], end: npt.NDArray[np.int64], taken: Doubles) -> Doubles:
    """Return the sums of (c - t) log(c - t) over the filled bins from start to end, t being another one each time.

    As a series in t the sums over the bins do not depend on it, so they are cumulated once.
    """
    filled = counts > 0
    c = np.where(filled, counts, 1).astype(np.float64)
    terms = [c * np.log(c), -1 - np.log(c), *(c ** (1 - n) / (n * (n - 1)) for n in range(2, TERMS + 1))]
    sums = [_cumulated(np.where(filled, term, 0)) for term in terms]
    series: Doubles = np.sum([taken**n * (one[end] - one[start]) for n, one in enumerate(sums)], axis=0)
    return series


def _x_log_x(counts: Counts, taken: Doubles) -> Doubles:
    """Return (c - t) log(c - t); zero for bins without values, which their caller counts."""
    c = np.where(counts > 0, counts - taken, 1)
    return c * np.log(c)


def _cumulated(terms: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the sums of the first 0, 1, 2... terms."""
    return np.concatenate([[0], np.cumsum(terms)])
