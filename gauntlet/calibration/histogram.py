"""What a method chooses a range from: the ends of a tensor's values, and ONNX Runtime's histogram of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnxruntime.quantization.calibrate import CalibrationDataCollector, HistogramCollector

Floats = npt.NDArray[np.float32]
Counts = npt.NDArray[np.int64]
Ends = tuple[np.float32, np.float32]
"""The lowest and the highest value of a tensor."""
Chunk = Mapping[str, list[npt.NDArray[Any]]]
"""The tensors of some calls by name, as ORT's calibrators give them to a collector."""

BINS = 2048
"""As in TensorRT's calibrator and ORT's percentile. ORT's entropy has 128 by default."""


@dataclass(frozen=True)
class TensorStatistics:
    """What is known of one tensor's values: the range, and where it was asked for, the histogram.

    The histogram is ORT's: the counts, and the edges of `BINS` bins of the same width around zero, out to the largest
    magnitude. It is None where nobody asked, or the bins would be narrower than float32 can tell apart.
    """

    lowest: np.float32
    highest: np.float32
    histogram: tuple[Counts, Floats] | None = None

    def within(self, low: np.float32, high: np.float32) -> Ends:
        """Return the part of a range in which values were seen; all that were seen where there is no such part.

        A tensor whose values are all in one bin ends like that, because its range would go from and to the same edge.
        ORT returns a lowest value above the highest one there.
        """
        low, high = max(low, self.lowest), min(high, self.highest)
        return (low, high) if low <= high else (self.lowest, self.highest)


class EndsCollector(CalibrationDataCollector):  # type: ignore[misc]
    """Finds the ends of each tensor's values; NaN where a value is NaN, which ORT's own collectors ignore."""

    def __init__(self) -> None:
        self.ends: dict[str, Ends] = {}
        self.values = 0

    def collect(self, name_to_arr: Chunk) -> None:
        """Look at the values of a chunk. A tensor without values has no ends."""
        for name, arrays in name_to_arr.items():
            for array in (array for array in arrays if array.size):
                with np.errstate(invalid="ignore"):
                    low, high = array.min(), array.max()
                known = self.ends.get(name, (low, high))
                self.ends[name] = (np.minimum(low, known[0]), np.maximum(high, known[1]))
                self.values += array.size

    def compute_collection_result(self) -> dict[str, Ends]:
        """Return the ends so far."""
        return dict(self.ends)


class FixedRangeCollector(HistogramCollector):  # type: ignore[misc]
    """ORT's histograms over ranges known beforehand: chunks add up to the histogram of all values at once.

    Left alone, ORT keeps the bin width of the first chunk and appends bins as values grow: the counts then depend on
    the order of the images, and a first chunk of nearly zeros makes the histogram too large for any memory.
    """

    def __init__(self, ends: Mapping[str, Ends]) -> None:
        super().__init__("percentile", False, BINS, None, None, None)  # the last three choose ranges, not counts
        for name, (low, high) in ends.items():
            limit: Any = max(abs(low), abs(high))
            with np.errstate(over="ignore", divide="ignore"):
                resolves = np.isfinite(2 * limit) and np.isfinite(np.float32(BINS) / limit)
            if resolves:  # else numpy could not place values in bins
                counts, edges = np.histogram(np.empty(0, np.float32), BINS, range=(-limit, limit))
                self.histogram_dict[name] = (counts, edges, low, high, limit)

    def collect(self, name_to_arr: Chunk) -> None:
        """Count the values of a chunk; ORT's own `collect` does the same and prints a line."""
        self.collect_value({name: name_to_arr[name] for name in self.histogram_dict})

    def compute_collection_result(self) -> dict[str, tuple[Counts, Floats]]:
        """Return the counts so far and the edges."""
        return {name: (counts, edges) for name, (counts, edges, *_) in self.histogram_dict.items()}
