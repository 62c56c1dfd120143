"""The whole range: nothing is clipped, and one outlier makes every step coarse."""

from typing import ClassVar, Literal

import numpy as np

from gauntlet.calibration.histogram import TensorStatistics
from gauntlet.core.frozen import Frozen


class MinMax(Frozen):
    """From the lowest to the highest value that was seen."""

    kind: Literal["minmax"] = "minmax"
    counts: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The method's name in files and in candidates' names."""
        return "minmax"

    def range_of(self, seen: TensorStatistics) -> tuple[np.float32, np.float32]:
        """Return the range."""
        return seen.lowest, seen.highest
