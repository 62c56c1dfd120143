"""The whole range: nothing is clipped, and one outlier makes every step coarse."""

from typing import ClassVar, Literal

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
