"""How well the scores rank each class before the others: ROC and precision-recall, one class against the rest."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from pydantic import Field
from scipy.special import logsumexp

from gauntlet.core.arrays import Array, Floats
from gauntlet.core.frozen import Frozen, Number
from gauntlet.metrics.class_scores import ClassScore
from gauntlet.metrics.confidence_calibration import are_probabilities

MAX_CURVES = 5
MAX_POINTS = 100
CHUNK_ROWS = 1024
DIGITS = 5


class RankedClassScore(ClassScore):
    """Scores of one class on the test images, its ranking among them."""

    roc_auc: Number | None = Field(
        None,
        description="probability that a random image of the class has a higher score than one of another; None without "
        "scores, or without images of the class or of others",
    )


class ClassCurve(Frozen):
    """Points of the two curves of one class, by falling threshold, the first at the origin of the ROC curve."""

    label: str
    roc_auc: Number
    average_precision: Number
    false_positive_rate: tuple[Number, ...]
    true_positive_rate: tuple[Number, ...] = Field(description="also called recall")
    precision: tuple[Number, ...]


class Ranking(Frozen):
    """Means over the classes that have images, and curves."""

    macro_roc_auc: Number
    macro_average_precision: Number
    curves: tuple[ClassCurve, ...] = Field(description=f"of the {MAX_CURVES} classes with the least average precision")


def rank_classes(
    scores: Array, truth: Array, classes: tuple[RankedClassScore, ...]
) -> tuple[tuple[RankedClassScore, ...], Ranking | None]:
    """Add each class's ranking, by scores of shape (n, classes) and the true class indices, shape (n,).

    The classes are ranked by their probabilities. One class after the other, so that memory does not grow with them.
    """
    ranked: list[RankedClassScore] = []
    curves: list[ClassCurve] = []
    for unranked, column in zip(classes, _probability_columns(scores, len(classes)), strict=True):
        score = unranked
        if 0 < unranked.images < len(truth):
            false, true, precision = _curve(column, truth == len(ranked))
            area = float(np.trapezoid(true, false))
            average = float(np.sum(np.diff(true) * precision[1:]))
            score = unranked.replace(roc_auc=area, average_precision=average)
            if len(curves) < MAX_CURVES or average < curves[-1].average_precision:
                curves = [*curves, _thinned(score, false, true, precision)]
                curves = sorted(curves, key=lambda curve: curve.average_precision)[:MAX_CURVES]
        ranked.append(score)
    known = [(unranked.roc_auc, unranked.average_precision) for unranked in ranked if unranked.roc_auc is not None]
    if not known:
        return tuple(ranked), None
    area, average = np.mean(np.array(known, np.float64), axis=0).tolist()
    return tuple(ranked), Ranking(macro_roc_auc=area, macro_average_precision=average, curves=tuple(curves))


def _probability_columns(scores: Array, classes: int) -> Iterator[Floats]:
    """Yield the probability of each class, shape (n,)."""
    if are_probabilities(scores):
        yield from (scores[:, index].astype(np.float64) for index in range(classes))
        return
    chunks = (scores[start : start + CHUNK_ROWS] for start in range(0, len(scores), CHUNK_ROWS))
    totals = np.concatenate([logsumexp(chunk.astype(np.float64), axis=1) for chunk in chunks])
    for index in range(classes):
        yield np.exp(scores[:, index] - totals)


def _curve(column: Floats, positive: npt.NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
    """Return false positive rate, true positive rate and precision, from above the highest score down."""
    from sklearn.metrics import confusion_matrix_at_thresholds

    _, false, _, true, _ = confusion_matrix_at_thresholds(positive, column)
    false, true = np.append(0, false), np.append(0, true)
    return false / false[-1], true / true[-1], np.append(1, true[1:] / (true[1:] + false[1:]))


def _thinned(score: RankedClassScore, *columns: Floats) -> ClassCurve:
    """Return at most `MAX_POINTS` points: the first, the last, and the others evenly along both curves."""
    steps = sum(np.abs(np.diff(column, prepend=column[0])) for column in columns)
    along = np.cumsum(steps)
    chosen = np.unique(np.searchsorted(along, np.linspace(0, along[-1], MAX_POINTS)))
    chosen = np.unique([0, *np.minimum(chosen, len(along) - 1).tolist(), len(along) - 1])
    false, true, precision = (tuple(np.round(column[chosen], DIGITS).tolist()) for column in columns)
    areas = {"label": score.label, "roc_auc": score.roc_auc, "average_precision": score.average_precision}
    return ClassCurve(**areas, false_positive_rate=false, true_positive_rate=true, precision=precision)
