"""The change of a metric from one model to another on the same samples, with its interval."""

import math
from typing import Literal, Self

from pydantic import Field

from gauntlet.core.frozen import Frozen, Number

Z_95 = 1.959964

LossVerdict = Literal["proven good", "proven bad", "not resolved"]


class PairedChange(Frozen):
    """What a model loses of a metric against its reference, sample by sample; a gain is negative."""

    metric: str
    n: int = Field(description="number of samples")
    before: Number = Field(description="the metric of the reference: the FP32 model, or the champion")
    after: Number
    drop: Number = Field(description="before - after")
    low: Number = Field(description="lower end of the 95 % interval of the drop")
    high: Number
    lost: int | None = Field(
        None, description="samples right before and wrong now; None for a metric that does not count right ones"
    )
    gained: int | None = Field(None, description="wrong before and right now")
    mcnemar_p: Number | None = Field(
        None, description="probability of so uneven a split of both if the models were equally good"
    )

    def verdict(self, allowed_drop: float) -> LossVerdict:
        """Return whether the candidate is proven to lose no more than allowed, proven to lose more, or neither."""
        if self.high <= allowed_drop:
            return "proven good"
        return "proven bad" if self.low > allowed_drop else "not resolved"

    def widened(self) -> Self:
        """Return the change with a wider interval, as if one more sample were lost completely, and one were gained.

        A bootstrap of a few samples that all agree has no width, so it would prove anything. Bonett and Price's
        interval of an accuracy (`gauntlet.metrics.paired_accuracy.drop_interval`) has one, by the variance added here.
        """
        more = added_half_width(self.n)
        return self.replace(
            low=self.drop - math.hypot(self.drop - self.low, more),
            high=self.drop + math.hypot(self.high - self.drop, more),
        )


def added_half_width(samples: float) -> float:
    """Return what two more samples, lost and gained, add to half the width of a 95 % interval, in quadrature."""
    return Z_95 * math.sqrt(2) / (samples + 2)
