"""Precision, recall and F1 of each class, and what a candidate loses in the worst one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gauntlet.core.arrays import Array
from gauntlet.core.frozen import Frozen, Number
from gauntlet.metrics.paired_accuracy import drop_interval

Floats = npt.NDArray[np.float64]
RESAMPLES = 1000
MIN_IMAGES = 8
"""Fewer images of a class prove nothing by being drawn again."""


class ClassScore(Frozen):
    """Scores of one class on the test images."""

    label: str
    precision: Number
    recall: Number
    f1: Number
    images: int
    average_precision: Number | None = Field(None, description="mean precision over recall; None without scores")


@dataclass(frozen=True)
class ClassCounts:
    """What each image has of each class, in objects, pixels or labels; three arrays of shape (n, classes)."""

    hits: Floats
    """Predicted and right."""
    predicted: Floats
    actual: Floats
    average_precision: Sequence[float | None] | None = None
    """Of each class; None without scores."""

    def scores(self, labels: tuple[str, ...]) -> tuple[ClassScore, ...]:
        """Return the scores of the classes that occur in the truth; what is not defined is 0."""
        hits, predicted, actual = (part.sum(axis=0) for part in (self.hits, self.predicted, self.actual))
        ranked = self.average_precision or [None] * len(actual)
        return tuple(
            ClassScore(
                label=label_of(labels, number),
                precision=float(hits[number] / max(predicted[number], 1)),
                recall=float(hits[number] / actual[number]),
                f1=float(2 * hits[number] / (predicted[number] + actual[number])),
                images=int((self.actual[:, number] > 0).sum()),
                average_precision=ranked[number],
            )
            for number in np.flatnonzero(actual).tolist()
        )


def label_of(labels: Sequence[str], number: int) -> str:
    """Return the name of a class, or its number where it has none."""
    return labels[number] if number < len(labels) else str(number)


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
    changed: str
    """How its predictions changed, for people."""
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
        changed = f"{lost} of {images.sum()} images lost, {gained} gained"
        drops.append(ClassDrop(label=labels[number], images=int(images.sum()), changed=changed, drop_low=low))
    return max(drops, key=lambda drop: drop.drop_low, default=None)


def largest_recall_drop(before: ClassCounts, after: ClassCounts, labels: tuple[str, ...]) -> ClassDrop | None:
    """Return the largest proven drop of a class's recall, by a paired percentile bootstrap over the images.

    The objects and the pixels of one image depend on each other, images do not (Efron and Tibshirani, An Introduction
    to the Bootstrap, 1993). Classes in fewer than eight images are left out.
    """
    generator, drops = np.random.default_rng(0), list[ClassDrop]()
    for number in np.flatnonzero(before.actual.any(axis=0)).tolist():
        shown = before.actual[:, number] > 0
        if (images := int(shown.sum())) < MIN_IMAGES:
            continue
        first, last, actual = (part[shown, number] for part in (before.hits, after.hits, before.actual))
        drawn = generator.multinomial(images, np.full(images, 1 / images), RESAMPLES)
        low = float(np.percentile(drawn @ (first - last) / (drawn @ actual), 2.5))
        recalls = (f"{part.sum() / actual.sum():.3f}" for part in (first, last))
        changed = f"recall {next(recalls)} before, {next(recalls)} now, {images} images"
        drops.append(ClassDrop(label=label_of(labels, number), images=images, changed=changed, drop_low=low))
    return max(drops, key=lambda drop: drop.drop_low, default=None)


def score_metrics(scores: Mapping[str, float]) -> dict[str, float]:
    """Return a problem's metrics by their names in MLflow."""
    return {"quality.top1" if name == "accuracy" else f"quality.{name}": value for name, value in scores.items()}
