"""Compare the accuracies of two models image by image, on the same images."""

import math
from bisect import bisect_left
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr

from gauntlet.metrics.paired_change import Z_95, LossVerdict, PairedChange

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


def accuracy_interval(accuracy: float, images: int) -> tuple[float, float]:
    """Return the 95 % interval of an accuracy on so many images (Wilson, JASA 22, 1927)."""
    from scipy.stats import binomtest

    interval = binomtest(round(accuracy * images), images).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


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
