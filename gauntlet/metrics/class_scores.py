"""Precision, recall and F1 of each class, and what a candidate loses in the worst one."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array
from gauntlet.core.frozen import Frozen, Number
from gauntlet.metrics.paired_accuracy import drop_interval


class ClassScore(Frozen):
    """Scores of one class on the test images."""

    label: str
    precision: Number
    recall: Number
    f1: Number
    images: int


def class_scores(truth: Array, predicted: Array, labels: tuple[str, ...]) -> tuple[ClassScore, ...]:
    """Score every class, by true and predicted class numbers, shape (n,); what is not defined is 0."""
    from sklearn.metrics import precision_recall_fscore_support

    numbers = list(range(len(labels)))
    scores = np.transpose(precision_recall_fscore_support(truth, predicted, labels=numbers, zero_division=0.0))
    return tuple(
        ClassScore(label=label, precision=precision, recall=recall, f1=f1, images=int(images))
        for label, (precision, recall, f1, images) in zip(labels, scores.tolist(), strict=True)
    )


class ClassDrop(Frozen):
    """The class whose recall is proven to fall most against the FP32 model's."""

    label: str
    images: int
    lost: int
    gained: int
    drop_low: Number
    """Lower end of the 95 % interval of the drop."""


def largest_class_drop(
    truth: Array, before: npt.NDArray[np.bool_], after: npt.NDArray[np.bool_], labels: tuple[str, ...]
) -> ClassDrop | None:
    """Return the largest proven drop of a class's recall; `before` and `after` say which images are right."""
    numbers = np.unique(truth).astype(np.int64)
    drops = []
    for number in numbers[(numbers >= 0) & (numbers < len(labels))].tolist():
        images = truth == number
        lost, gained = int(np.sum(before & ~after & images)), int(np.sum(~before & after & images))
        low, _ = drop_interval(lost, gained, int(images.sum()))
        drops.append(ClassDrop(label=labels[number], images=int(images.sum()), lost=lost, gained=gained, drop_low=low))
    return max(drops, key=lambda drop: drop.drop_low, default=None)


def score_metrics(scores: Mapping[str, float]) -> dict[str, float]:
    """Return a problem's metrics by their names in MLflow."""
    return {"quality.top1" if name == "accuracy" else f"quality.{name}": value for name, value in scores.items()}
