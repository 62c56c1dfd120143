"""Two models on the same images: what the images on which they differ say about their accuracies."""

import math
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gauntlet.core.frozen import Frozen, Number

Z_95 = 1.959964
MOST_IMAGES = 10_000_000

LossVerdict = Literal["proven good", "proven bad", "not resolved"]


class PairedAccuracy(Frozen):
    """How a candidate's right and wrong answers differ from the reference's, image by image."""

    images: int
    lost: int = Field(description="right before, wrong now")
    gained: int = Field(description="wrong before, right now")
    drop: Number = Field(description="accuracy lost: (lost - gained) / images")
    drop_low: Number = Field(description="lower end of the 95 % interval of the accuracy lost")
    drop_high: Number
    mcnemar_p: Number = Field(description="chance of so uneven a split of the changed images if neither were better")


def pair_accuracies(reference_right: npt.NDArray[np.bool_], candidate_right: npt.NDArray[np.bool_]) -> PairedAccuracy:
    """Compare two models image by image.

    Args:
        reference_right: whether the reference answers right, shape (images,).
        candidate_right: the same of the candidate, on the same images in the same order.
    """
    lost = int(np.sum(reference_right & ~candidate_right))
    gained = int(np.sum(~reference_right & candidate_right))
    count = len(reference_right)
    low, high = drop_interval(lost, gained, count)
    return PairedAccuracy(
        images=count,
        lost=lost,
        gained=gained,
        drop=(lost - gained) / count,
        drop_low=low,
        drop_high=high,
        mcnemar_p=mcnemar(lost, gained),
    )


def mcnemar(lost: int, gained: int) -> float:
    """Return the two-sided p-value of the exact test (McNemar, Psychometrika 12, 1947; binomial form).

    Images on which both models are right, or both wrong, say nothing about which one is better.
    """
    changed = lost + gained
    tail: float = sum(math.comb(changed, k) for k in range(min(lost, gained) + 1)) / 2**changed
    return min(1.0, 2 * tail)


def drop_interval(lost: float, gained: float, images: float) -> tuple[float, float]:
    """Return the 95 % interval of the accuracy lost.

    Adjusted Wald interval of Bonett and Price (Journal of Educational and Behavioral Statistics 37, 2012): one image is
    added to each kind of change, so that it keeps its confidence with few changes, and is no point with none.
    """
    p, q = (lost + 1) / (images + 2), (gained + 1) / (images + 2)
    half = Z_95 * math.sqrt(max(0.0, p + q - (p - q) ** 2) / (images + 2))
    return max(-1.0, p - q - half), min(1.0, p - q + half)


def loss_verdict(paired: PairedAccuracy, allowed_drop: float) -> LossVerdict:
    """Say whether the candidate is proven to lose no more than allowed, proven to lose more, or neither."""
    if paired.drop_high <= allowed_drop:
        return "proven good"
    return "proven bad" if paired.drop_low > allowed_drop else "not resolved"


def images_to_resolve(paired: PairedAccuracy, allowed_drop: float) -> int | None:
    """Return how many images would probably settle it, if the shares of changed images stay as they are.

    None where no number below ten millions would: the loss is as large as the limit.
    """

    def settled(images: int) -> bool:
        scale = images / paired.images
        low, high = drop_interval(paired.lost * scale, paired.gained * scale, images)
        return high <= allowed_drop or low > allowed_drop

    if not settled(MOST_IMAGES):
        return None
    least, enough = 1, MOST_IMAGES
    while least < enough:  # the interval shrinks as images are added
        middle = (least + enough) // 2
        least, enough = (least, middle) if settled(middle) else (middle + 1, enough)
    return enough
