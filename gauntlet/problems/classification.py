"""One of several classes per sample."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import Field

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.frozen import Frozen, Number
from gauntlet.metrics.error_metrics import predicted_classes
from gauntlet.problems.base import Floats, Problem
from gauntlet.problems.prediction import Prediction

TOP, SHOWN = 5, 3


class ClassConfidence(Frozen):
    """One class and its probability."""

    label: str
    index: int
    confidence: Number | None = Field(description="softmax of the scores; None where the model returns classes alone")


class ClassPrediction(Prediction):
    """The most probable classes, best first."""

    top: tuple[ClassConfidence, ...]

    def lines(self) -> list[str]:
        """Return the first classes with their confidence: `7 98.9 %`."""
        return [_class_text(one) for one in self.top[:SHOWN]]


@dataclass(frozen=True)
class Classification(Problem):
    """A score per class, or the class itself, in the primary output; the accuracy is primary.

    The class with the highest score is predicted; no threshold is applied. Its confidence is the softmax of the scores;
    scores that are not negative and sum to 1 for every sample of the call are taken for probabilities as they are.
    Softmax values are no calibrated probabilities: a confidence of 0.9 does not mean that 90 % of such predictions are
    right.
    """

    metric: ClassVar[str] = "accuracy"

    def decode(self, outputs: NamedArrays) -> Iterator[ClassPrediction]:
        """Yield one prediction per sample; the primary output has shape (n, classes), or (n,) with the class itself."""
        scores = outputs[self.primary_output]
        if scores.ndim == 1:
            for index in scores.astype(int).tolist():
                yield ClassPrediction(top=(ClassConfidence(label=self._label(index), index=index, confidence=None),))
            return
        for row in self.class_probabilities(scores.reshape(len(scores), -1)):
            best = np.argsort(-row, kind="stable")[:TOP].tolist()
            yield ClassPrediction(
                top=tuple(ClassConfidence(label=self._label(i), index=i, confidence=float(row[i])) for i in best)
            )

    def predictions(self, output: Array) -> Array | None:
        """Return the class of each sample, shape (n,)."""
        return predicted_classes(output, self.signature.labels)

    def statistics(self, predictions: Array, truth: Array) -> Floats:
        """Return per sample: whether the class is right, and 1."""
        return np.stack([predictions == truth, np.ones(len(truth))], axis=1).astype(np.float64)

    def scores(self, sums: Floats) -> dict[str, Floats]:
        """Return the accuracy."""
        return {"accuracy": sums[..., 0] / sums[..., 1]}

    def samples_per_class(self, truth: Array) -> list[int]:
        """Return how many samples have each class."""
        return [int(count) for count in np.bincount(truth, minlength=len(self.signature.labels))]

    def _label(self, index: int) -> str:
        return self.signature.labels[index] if index < len(self.signature.labels) else str(index)

    @staticmethod
    def class_probabilities(scores: np.ndarray) -> np.ndarray:
        """Return the scores as they are where they are probabilities already, else their softmax."""
        if scores.min(initial=0) >= 0 and np.allclose(scores.sum(axis=1), 1, atol=1e-3):
            return scores
        shifted = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def _class_text(one: ClassConfidence) -> str:
    return one.label if one.confidence is None else f"{one.label} {100 * one.confidence:.1f} %"
