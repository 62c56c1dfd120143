"""How a range follows from the values of a tensor: all of them, without a few, or by what quantization loses."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from gauntlet.calibration.histogram import Ends, TensorStatistics
from gauntlet.core.frozen import Frozen


class MinMax(Frozen):
    """From the lowest to the highest value."""

    kind: Literal["minmax"] = "minmax"
    counts: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The method's name in files and in candidates' names."""
        return self.kind

    def range_of(self, statistics: TensorStatistics) -> Ends:
        """Return the range."""
        return statistics.lowest, statistics.highest


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


LEVELS = 128  # bins of the quantized distribution; one for each step of a signed byte's positive half


class _Counts(np.ndarray):
    """Counts that Python's `sum`, which ORT's search calls for each bin of each range, adds in a third of the time."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())


class Entropy(Frozen):
    """The range around zero with the lowest Kullback-Leibler divergence between real and quantized distribution.

    After S. Migacz, "8-bit Inference with TensorRT" (GTC 2017, talk S7310), by ONNX Runtime's search, about a second a
    tensor. `quantize_static` gives that search 128 bins for 128 levels, so that its only choice is the whole range, as
    MinMax. Here there are 2048 bins, as in TensorRT.
    """

    kind: Literal["entropy"] = "entropy"
    counts: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The method's name in files and in candidates' names."""
        return self.kind

    def range_of(self, statistics: TensorStatistics) -> Ends:
        """Return the range."""
        from onnxruntime.quantization.calibrate import HistogramCollector

        if statistics.histogram is None:
            return statistics.lowest, statistics.highest
        counts, edges = statistics.histogram
        collector = HistogramCollector("entropy", False, len(counts), LEVELS, 0, "same")
        histogram = (counts.view(_Counts), edges, statistics.lowest, statistics.highest)
        low, high = collector.get_entropy_threshold(histogram, LEVELS)
        return statistics.within(low, high)
