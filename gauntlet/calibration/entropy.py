"""Choose the range that loses the least information by quantization: the method of TensorRT's calibrator."""

from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from gauntlet.calibration.histogram import Counts, Ends, TensorStatistics
from gauntlet.core.frozen import Frozen

LEVELS = 128  # bins of the quantized distribution; one for each step of a signed byte's positive half
EPSILON = 1e-4  # the count that an empty bin gets, so that the divergence stays finite
CLOSE = 1e-5
"""Widths whose fast divergence is within this share of 1 + the lowest one are compared again in ORT's arithmetic.
Its float32 sums differ from the fast form by at most 1e-6 in the tests."""
TERMS = 6
"""Terms of the series of (c - t) log(c - t) in t < 0.21; the remainder is less than 1e-6 of a value."""

Doubles = npt.NDArray[np.float64]


class Entropy(Frozen):
    """The range around zero with the lowest Kullback-Leibler divergence between real and quantized distribution.

    After S. Migacz, "8-bit Inference with TensorRT" (GTC 2017, talk S7310), with the arithmetic of ORT's
    `EntropyCalibrater`, bin for bin. `quantize_static` gives that calibrator 128 bins for 128 levels, so that its only
    choice is the whole range, as MinMax. Here there are 2048 bins, as in TensorRT.
    """

    kind: Literal["entropy"] = "entropy"
    counts: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The method's name in files and in candidates' names."""
        return self.kind

    def range_of(self, statistics: TensorStatistics) -> Ends:
        """Return the range."""
        if statistics.histogram is None:
            return statistics.lowest, statistics.highest
        counts, edges = statistics.histogram
        half, width = len(counts) // 2, best_width(counts)
        return statistics.within(edges[half - width], edges[min(half + width + 1, len(counts))])


def widths(counts: Counts) -> npt.NDArray[np.int64]:
    """Return the ranges to choose from, as numbers of bins on each side of zero."""
    return np.arange(LEVELS // 2, len(counts) // 2 + 1)


def best_width(counts: Counts) -> int:
    """Return the width that ORT's search finds.

    All divergences are computed at once from cumulative sums in float64. ORT's float32 rounding decides between nearly
    equal widths, so the few that are close to the best are compared in ORT's arithmetic.
    """
    near, choices = divergences(counts), widths(counts)
    best = near.min()
    choices = choices[near <= best + CLOSE * (1 + best)]
    return int(choices[np.argmin([divergence(counts, width) for width in choices])])


def divergence(counts: Counts, width: int) -> np.float32:
    """Return the divergence of one width: values further out count into the outermost bins. Arithmetic as in ORT."""
    half, bins = len(counts) // 2, len(counts)
    start, end = half - width, min(half + width + 1, bins)
    inside = counts[start:end]
    real = inside.copy()
    real[0] += counts[:start].sum()
    real[-1] += counts[end:].sum()
    merged = real.size // LEVELS  # bins per level; the remaining bins are added to the last level
    whole = merged * LEVELS
    sums = inside[:whole].reshape(LEVELS, merged).sum(axis=1)
    sums[-1] += inside[whole:].sum()
    filled = np.count_nonzero(real[:whole].reshape(LEVELS, merged), axis=1)
    level = np.where(filled, sums / np.maximum(filled, 1), 0).astype(np.int64)  # truncated to whole numbers, as in ORT
    quantized = np.zeros_like(real)
    quantized[:whole] = np.repeat(level, merged)
    if not (real.any() and quantized.any()):
        return np.float32(np.inf)
    p, q = _smooth(real), _smooth(quantized)
    p /= p.sum()
    q /= q.sum()
    return np.float32(np.sum(p * np.log(p / q)))


def _smooth(counts: Counts) -> npt.NDArray[np.float32]:
    """Return the counts with `EPSILON` in each empty bin, taken in equal parts from the others."""
    empty = counts == 0
    missing = np.count_nonzero(empty)
    smooth = counts.astype(np.float32)
    smooth -= np.float32(EPSILON * missing / (counts.size - missing))
    smooth[empty] = EPSILON
    return smooth


def divergences(counts: Counts) -> Doubles:
    """Return the divergence of every width, shape (widths,), equal to `divergence` except for rounding.

    With r and q the smoothed real and quantized counts, and R and Q their sums, it is
    (sum of r log r - sum of r log q) / R + log(Q / R). The first sum comes from cumulative sums over the bins,
    the second has one term per level.
    """
    half, bins, width = len(counts) // 2, len(counts), widths(counts)
    start, end = half - width, np.minimum(half + width + 1, bins)
    size = end - start
    total, filled = _cumulative(counts), _cumulative(counts != 0)
    first, last = total[start + 1], total[-1] - total[end - 1]  # including all values outside
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
    with np.errstate(divide="ignore", invalid="ignore"):  # widths where all levels are empty
        given = EPSILON * (size - used) / used
        quantized = np.log(np.where(level, level - given[:, None], EPSILON))
        own = _own(counts, start + 1, end - 1, taken) + _x_log_x(first, taken) + _x_log_x(last, taken)
        own += EPSILON * np.log(EPSILON) * (size - present)
        crossed = (real * quantized).sum(axis=1) + (total[-1] - real.sum(axis=1)) * np.log(EPSILON)
        found = (own - crossed) / total[-1] + np.log(merged * level.sum(axis=1) / total[-1])
    return np.where(used > 0, found, np.inf)


def _own(counts: Counts, start: npt.NDArray[np.int64], end: npt.NDArray[np.int64], taken: Doubles) -> Doubles:
    """Return the sums of (c - t) log(c - t) over the non-empty bins from start to end, with `taken` as t.

    In the series in t, the sums over the bins do not depend on t, so they are accumulated once.
    """
    filled = counts > 0
    c = np.where(filled, counts, 1).astype(np.float64)
    terms = [c * np.log(c), -1 - np.log(c), *(c ** (1 - n) / (n * (n - 1)) for n in range(2, TERMS + 1))]
    sums = [_cumulative(np.where(filled, term, 0)) for term in terms]
    series: Doubles = np.sum([taken**n * (one[end] - one[start]) for n, one in enumerate(sums)], axis=0)
    return series


def _x_log_x(counts: Counts, taken: Doubles) -> Doubles:
    """Return (c - t) log(c - t), with `taken` as t; zero for empty bins."""
    c = np.where(counts > 0, counts - taken, 1)
    return c * np.log(c)


def _cumulative(terms: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the sums of the first 0, 1, 2... terms."""
    return np.concatenate([[0], np.cumsum(terms)])
