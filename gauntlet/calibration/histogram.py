"""The range of a tensor's values, and their histogram as ONNX Runtime counts it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import NamedArrays

Counts = npt.NDArray[np.int64]
Ends = tuple[np.float32, np.float32]  # the lowest and the highest value of a tensor
Histogram = tuple[Counts, npt.NDArray[np.float32]]
"""The counts and the edges of `BINS` bins of equal width around zero, out to the largest magnitude."""

BINS = 2048  # as in TensorRT's calibrator and ORT's percentile; ORT's entropy has 128 by default


@dataclass(frozen=True)
class TensorStatistics:
    """The range of one tensor's values, and their histogram.

    The histogram is None when it was not requested, or when float32 cannot represent bins that narrow.
    """

    lowest: np.float32
    highest: np.float32
    histogram: Histogram | None = None

    def within(self, low: np.float32, high: np.float32) -> Ends:
        """Return the part of a range that contains values; the range of all values if there is no such part.

        That happens when all values are in one bin, where ORT returns a lowest value above the highest one.
        """
        low, high = max(low, self.lowest), min(high, self.highest)
        return (low, high) if low <= high else (self.lowest, self.highest)


class EndsCollector:
    """Finds the lowest and highest value of each tensor; NaN if a value is NaN, which ORT's own collectors ignore."""

    def __init__(self) -> None:
        self.ends: dict[str, Ends] = {}

    def collect(self, activations: NamedArrays) -> None:
        """Include the values of one call. A tensor without values has no ends."""
        for name, array in activations.items():
            if array.size:
                with np.errstate(invalid="ignore"):
                    low, high = array.min(), array.max()
                known = self.ends.get(name, (low, high))
                self.ends[name] = (np.minimum(low, known[0]), np.maximum(high, known[1]))

    def result(self) -> dict[str, Ends]:
        """Return the ends so far."""
        return dict(self.ends)


class FixedRangeCollector:
    """Counts values over known ranges, so that the counts of all calls add up to ORT's histogram of all values at once.

    ORT's own collector keeps the bin width of the first call and appends bins as values grow: the counts then depend on
    the order of the samples, and a first call with values near zero makes the histogram exceed any memory.
    """

    def __init__(self, ends: Mapping[str, Ends]) -> None:
        self.histograms: dict[str, Histogram] = {}
        for name, (low, high) in ends.items():
            limit: Any = max(abs(low), abs(high))
            with np.errstate(over="ignore", divide="ignore"):
                resolves = np.isfinite(2 * limit) and np.isfinite(np.float32(BINS) / limit)
            if resolves:  # otherwise numpy cannot place values in bins
                self.histograms[name] = np.histogram(np.empty(0, np.float32), BINS, range=(-limit, limit))

    def collect(self, activations: NamedArrays) -> None:
        """Count the values of one call."""
        for name, (counts, edges) in self.histograms.items():
            more: Counts = np.histogram(activations[name], BINS, range=(edges[0], edges[-1]))[0]
            self.histograms[name] = (counts + more, edges)

    def result(self) -> dict[str, Histogram]:
        """Return the counts so far and the edges."""
        return dict(self.histograms)
