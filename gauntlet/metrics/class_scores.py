"""Precision, recall and F1 of each class."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from gauntlet.core.arrays import Array, Floats
from gauntlet.core.frozen import Frozen, Number


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


def fitting_order(truth: Array, predicted: Array, labels: Sequence[str]) -> list[str]:
    """Return the labels in the order of the model's classes where it is proven to be another one; else none.

    What fits half of the samples best must explain most mistakes in the other half, by 3 standard deviations.
    """
    from scipy.optimize import linear_sum_assignment

    count, pairs = len(labels), np.stack([truth, predicted]).astype(np.int64)
    actual, guess = pairs[:, ((pairs >= 0) & (pairs < count)).all(axis=0)]
    half = np.random.default_rng(0).random(len(actual)) < 0.5
    cells = np.bincount(guess[half] * count + actual[half], minlength=count**2).reshape(count, count)
    order = linear_sum_assignment(cells + np.eye(count) / 2, maximize=True)[1]
    before, after = (guess == actual)[~half], (order[guess] == actual)[~half]
    gain, limit = after.sum() - before.sum(), max((~before).sum() / 2, 3 * (before != after).sum() ** 0.5)
    return [labels[index] for index in order] if gain > limit else []


def score_metrics(scores: Mapping[str, float]) -> dict[str, float]:
    """Return a problem's metrics by their names in MLflow."""
    return {"quality.top1" if name == "accuracy" else f"quality.{name}": value for name, value in scores.items()}
