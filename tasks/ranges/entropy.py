"""Choose the range whose quantised values tell most about the real ones: the method of TensorRT's calibrator."""

from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from tasks.frozen import Frozen
from tasks.ranges.histogram import Counts, Statistics

LEVELS = 128
"""Bins of the quantised distribution; one for each step of a signed byte's positive half."""
EPSILON = 1e-4
"""The share that a bin without values gets, so that the divergence stays finite."""

Floats = npt.NDArray[np.float32]


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

    def range_of(self, seen: Statistics) -> tuple[np.float32, np.float32]:
        """Return the range."""
        if seen.counts is None:
            return seen.lowest, seen.highest
        half = len(seen.counts) // 2
        candidates = _Candidates(seen.counts)
        divergences = [candidates.divergence(width) for width in range(LEVELS // 2, half + 1)]
        width = LEVELS // 2 + int(np.argmin(divergences))
        edges = seen.edges
        return seen.within(edges[half - width], edges[min(half + width + 1, len(seen.counts))])


class _Candidates:
    """The ranges to choose from: so many bins on both sides of zero. Nearly a thousand, so sums are made once."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts
        self.values = np.concatenate([[0], np.cumsum(counts)])
        self.filled = np.concatenate([[0], np.cumsum(counts != 0)])

    def divergence(self, width: int) -> np.float32:
        """Return the divergence when only the bins up to `width` from the middle keep a place of their own."""
        half, bins = len(self.counts) // 2, len(self.counts)
        start, end = half - width, min(half + width + 1, bins)
        real = self.counts[start:end].copy()
        real[0] += self.values[start]
        real[-1] += self.values[bins] - self.values[end]
        empty = real == 0
        missing = int(np.count_nonzero(empty))
        if missing == real.size:
            return np.float32(np.inf)
        merged = real.size // LEVELS  # bins a level; the values of those that are left over join the last level
        ends = start + merged * np.arange(LEVELS + 1)
        values, places = self.values[ends], self.filled[ends]
        sums, filled = values[1:] - values[:-1], places[1:] - places[:-1]
        sums[-1] += self.values[end] - values[-1]
        filled[0] += not empty[0] and self.counts[start] == 0
        level = (sums / np.maximum(filled, 1)).astype(np.int64)  # cut to whole numbers, as ORT does
        level[filled == 0] = 0
        rest = real.size - merged * LEVELS
        blank = merged * int(np.count_nonzero(level == 0)) + rest
        if blank == real.size:
            return np.float32(np.inf)
        p = _smooth(real, empty, missing, real.size)
        q = np.full(real.size, EPSILON, np.float32)
        q[: real.size - rest] = np.repeat(_smooth(level, level == 0, blank, real.size), merged)
        p /= p.sum()
        q /= q.sum()
        return np.float32(np.sum(p * np.log(p / q)))


def _smooth(counts: Counts, empty: npt.NDArray[np.bool_], missing: int, size: int) -> Floats:
    """Take a little from the bins with values and give it to those without, `missing` of `size`."""
    taken = np.float32(EPSILON * missing / (size - missing))
    smooth: Floats = counts.astype(np.float32)
    smooth -= taken
    smooth[empty] = EPSILON
    return smooth
