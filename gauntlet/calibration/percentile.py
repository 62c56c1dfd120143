"""Clip the few values at the ends, so that the many others get finer steps."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from gauntlet.calibration.histogram import TensorStatistics
from gauntlet.core.frozen import Frozen


class Percentile(Frozen):
    """The range that holds so many percent of the values; half of the others lie at each end.

    The arithmetic is that of ORT's `PercentileCalibrater` with `symmetric=False`, bin for bin. `quantize_static` sets
    `symmetric=True` there, which cuts all of the others by magnitude; a range of ReLU's answers is then a little
    smaller.
    """

    kind: Literal["percentile"] = "percentile"
    percentile: float = Field(99.999, gt=50, lt=100, description="percent of the values inside the range")
    counts: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The method's name in files and in candidates' names."""
        return f"percentile{self.percentile:.10g}"

    def range_of(self, seen: TensorStatistics) -> tuple[np.float32, np.float32]:
        """Return the range."""
        if seen.histogram is None:
            return seen.lowest, seen.highest
        counts, edges = seen.histogram
        cut = (100.0 - self.percentile) / 200.0
        cumulated = np.cumsum(counts / counts.sum())
        left, right = np.searchsorted(cumulated, cut), np.searchsorted(cumulated, 1.0 - cut)
        return seen.within(edges[left], edges[right])
