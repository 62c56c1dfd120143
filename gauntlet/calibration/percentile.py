"""Clip the few values at both ends, so that all others get finer steps."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from gauntlet.calibration.histogram import Ends, TensorStatistics
from gauntlet.core.frozen import Frozen


class Percentile(Frozen):
    """The range that holds the given percentage of the values; half of the others are clipped at each end.

    The arithmetic is that of ORT's `PercentileCalibrater` with `symmetric=False`, bin for bin. `quantize_static` sets
    `symmetric=True`, which clips by magnitude; the range of a ReLU's outputs is then slightly smaller.
    """

    kind: Literal["percentile"] = "percentile"
    percentile: float = Field(99.999, gt=50, lt=100, description="percent of the values inside the range")
    counts: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The method's name in files and in candidates' names."""
        return f"percentile{self.percentile:.10g}"

    def range_of(self, statistics: TensorStatistics) -> Ends:
        """Return the range."""
        if statistics.histogram is None:
            return statistics.lowest, statistics.highest
        counts, edges = statistics.histogram
        cut = (100.0 - self.percentile) / 200.0
        left, right = np.searchsorted(np.cumsum(counts / counts.sum()), [cut, 1.0 - cut])
        return statistics.within(edges[left], edges[right])
