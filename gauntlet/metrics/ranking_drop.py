"""What a candidate loses of a model's ranking: fraud before the usual, whatever class has the highest score."""

import math

import numpy as np

from gauntlet.core.arrays import Floats
from gauntlet.metrics.paired_accuracy import Z_95, PairedChange, added_half_width

METRIC = "macro_roc_auc"


def ranking_drop(before: Floats, after: Floats, membership: Floats) -> PairedChange | None:
    """Compare how two models rank the samples of each class before the others, by the mean of ROC AUC over the classes.

    `membership` is how probably each sample is of each class, or 0 and 1, all of shape (n, classes). A class of less
    than one expected sample does not count; None where all do not. The interval is DeLong's for paired areas
    (Biometrics 44, 1988), with the samples weighted, and wider as if in each class one more were lost, and one gained.
    """
    drops, areas, widths, influence = list[float](), list[tuple[float, float]](), list[float](), np.zeros(len(before))
    for old, new, positive in zip(before.T, after.T, membership.T, strict=True):
        own, others = float(positive.sum()), float((1 - positive).sum())
        if min(own, others) < 1:
            continue
        first, last = (_placements(scores, positive) for scores in (old, new))
        area, now = (float(positive @ higher / own) for higher, _ in (first, last))
        lost, drop = [one - other for one, other in zip(first, last, strict=True)], area - now
        influence += positive * (lost[0] - drop) / own + (1 - positive) * (lost[1] - drop) / others
        areas.append((area, now))
        drops.append(drop)
        widths.append(added_half_width(min(own, others)))
    if not drops:
        return None
    drop, (area, now) = float(np.mean(drops)), np.mean(areas, axis=0).tolist()
    half = math.hypot(Z_95 * float(np.linalg.norm(influence)), float(np.linalg.norm(widths))) / len(drops)
    return PairedChange(
        metric=METRIC, n=len(before), before=area, after=now, drop=drop, low=drop - half, high=drop + half
    )


def _placements(scores: Floats, positive: Floats) -> tuple[Floats, Floats]:
    """Return which share of the others has a lower score than each sample, and which share of the class a higher one.

    Equal scores count as half.
    """
    _, rank = np.unique(scores, return_inverse=True)

    def lower(weights: Floats) -> Floats:
        own = np.bincount(rank, weights)
        return np.asarray(((np.cumsum(own) - own / 2) / own.sum())[rank])

    return lower(1 - positive), 1 - lower(positive)
