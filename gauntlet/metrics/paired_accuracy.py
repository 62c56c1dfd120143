"""Compare the accuracies of two models image by image, on the same images."""

import math
from bisect import bisect_left
from collections.abc import Callable
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field
from scipy.special import bdtr

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


MAX_IMAGES = 10_000_000


def pair_accuracies(reference_right: npt.NDArray[np.bool_], candidate_right: npt.NDArray[np.bool_]) -> PairedChange:
    """Compare which images each model classifies correctly, shape (images,), in the same order."""
    lost = int(np.sum(reference_right & ~candidate_right))
    gained = int(np.sum(~reference_right & candidate_right))
    count = len(reference_right)
    low, high = drop_interval(lost, gained, count)
    return PairedChange(
        metric="accuracy",
        n=count,
        before=float(np.mean(reference_right)),
        after=float(np.mean(candidate_right)),
        drop=(lost - gained) / count,
        low=low,
        high=high,
        lost=lost,
        gained=gained,
        mcnemar_p=mcnemar(lost, gained),
    )


def mcnemar(lost: int, gained: int) -> float:
    """Return the two-sided p-value of the exact test (McNemar, Psychometrika 12, 1947; binomial form).

    Images that both models classify correctly, or both wrongly, do not count.
    """
    return min(1.0, 2 * float(bdtr(min(lost, gained), lost + gained, 0.5)))


def drop_interval(lost: float, gained: float, images: float) -> tuple[float, float]:
    """Return the 95 % interval of the accuracy drop.

    Adjusted Wald interval of Bonett and Price (Journal of Educational and Behavioral Statistics 37, 2012): one image is
    added to each kind of change, so that it covers the true drop with few changes, and has a width with none.
    """
    p, q = (lost + 1) / (images + 2), (gained + 1) / (images + 2)
    half = Z_95 * math.sqrt(max(0.0, p + q - (p - q) ** 2) / (images + 2))
    return max(-1.0, p - q - half), min(1.0, p - q + half)


def resolve(change: PairedChange, allowed_drop: float) -> tuple[LossVerdict, int | None]:
    """Return the verdict and, if it is not resolved, the number of images that would probably resolve it.

    No number for a metric that does not count right images.
    """
    verdict = change.verdict(allowed_drop)
    return verdict, images_to_resolve(change, allowed_drop) if verdict == "not resolved" else None


def images_to_resolve(change: PairedChange, allowed_drop: float) -> int | None:
    """Return how many images would probably resolve the verdict, if the shares of changed images stay as they are.

    None where ten million would not: the drop is as large as the limit. The interval shrinks as images are added,
    so all larger numbers resolve it, too.
    """
    lost, gained = change.lost, change.gained
    if lost is None or gained is None:
        return None

    def is_resolved(images: int) -> bool:
        scale = images / change.n
        low, high = drop_interval(lost * scale, gained * scale, images)
        return high <= allowed_drop or low > allowed_drop

    return least_count(is_resolved)


def least_count(is_enough: Callable[[int], bool]) -> int | None:
    """Return the least number of images that is enough, of which all larger ones are; None above ten million."""
    enough = 1 + bisect_left(range(1, MAX_IMAGES + 1), True, key=is_enough)
    return enough if enough <= MAX_IMAGES else None
