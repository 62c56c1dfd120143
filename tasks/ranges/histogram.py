"""A histogram of fixed size over a known range: numpy's counts, at half of numpy's price."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Counts = npt.NDArray[np.int64]

BINS = 2048
"""As TensorRT's calibrator and ORT's percentile. ORT's entropy has 128 by default; see `tasks.ranges.entropy`."""
BLOCK = 262_144
"""Values that are sorted at a time: few enough for a processor's cache, many beside the edges then looked up."""


@dataclass(frozen=True)
class Statistics:
    """What is known of one tensor's values: the range, and where it was asked for, the counts.

    The bins are those of ORT: `BINS` of the same width from -limit to limit, where limit is the largest magnitude.
    `counts` is None where nobody asked, or the bins would be narrower than float32 can tell apart.
    """

    lowest: np.float32
    highest: np.float32
    limit: np.float32
    counts: Counts | None = None

    @property
    def edges(self) -> Floats:
        """The edges of the bins, shape (BINS + 1,)."""
        return edges_of(self.limit)

    def within(self, low: np.float32, high: np.float32) -> tuple[np.float32, np.float32]:
        """Return the part of a range in which values were seen; all that were seen where there is no such part.

        A tensor whose values are all in one bin ends like that, because its range would go from and to the same edge.
        ORT answers with a lowest value above the highest one there.
        """
        low, high = max(low, self.lowest), min(high, self.highest)
        return (low, high) if low <= high else (self.lowest, self.highest)


def edges_of(limit: np.float32) -> Floats:
    """Return the edges that `numpy.histogram` puts over (-limit, limit) for float32 values."""
    with np.errstate(all="ignore"):  # of a limit near the end of float32; `Histogram.resolves` notices
        return np.linspace(-limit, limit, BINS + 1, dtype=np.float32)


@dataclass
class Histogram:
    """Counts that grow as values come in; the memory does not."""

    limit: np.float32
    counts: Counts = field(default_factory=lambda: np.zeros(BINS, np.int64))
    edges: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.edges = edges_of(self.limit)

    @property
    def resolves(self) -> bool:
        """Whether float32 can tell the edges apart."""
        with np.errstate(all="ignore"):
            return bool(np.all(np.diff(self.edges) > 0) and np.isfinite(np.float32(BINS) / self.limit))

    def add(self, values: npt.NDArray[Any]) -> None:
        """Count float32 values of any shape, exactly as `numpy.histogram` does; those outside go to the outer bins.

        `numpy.histogram` compares every value with both edges of its bin. To sort the values with the processor's
        vector instructions and to look the edges up among them takes half of the time, and needs no arithmetic that
        rounds; other threads can run meanwhile.
        """
        flat = values.reshape(-1)
        for start in range(0, flat.size, BLOCK):
            block = np.sort(flat[start : start + BLOCK])
            below = np.searchsorted(block, self.edges[1:-1])
            self.counts += np.diff(below, prepend=0, append=block.size)
