"""One of several classes per sample."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.signature import Signature
from gauntlet.problems.caption import with_caption
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

    def text(self) -> str:
        """Return the first classes with their confidence: `7 98.9 %, 1 0.7 %`."""
        return ", ".join(_class_text(one) for one in self.top[:SHOWN])


@dataclass(frozen=True)
class Classification:
    """A score per class, or the class itself, in `signature.primary_output`.

    The class with the highest score is predicted; no threshold is applied. Its confidence is the softmax of the scores;
    scores that are not negative and sum to 1 for every sample of the call are taken for probabilities as they are.
    Softmax values are no calibrated probabilities: a confidence of 0.9 does not mean that 90 % of such predictions are
    right.
    """

    signature: Signature

    def decode(self, outputs: NamedArrays) -> Iterator[ClassPrediction]:
        """Yield one prediction per sample; the primary output has shape (n, classes), or (n,) with the class itself."""
        scores = outputs[self.signature.primary_output or self.signature.outputs[0].name]
        if scores.ndim == 1:
            for index in scores.astype(int).tolist():
                yield ClassPrediction(top=(ClassConfidence(label=self._label(index), index=index, confidence=None),))
            return
        for row in self._probabilities(scores.reshape(len(scores), -1)):
            best = np.argsort(-row, kind="stable")[:TOP].tolist()
            yield ClassPrediction(
                top=tuple(ClassConfidence(label=self._label(i), index=i, confidence=float(row[i])) for i in best)
            )

    def draw(self, pixels: Array, prediction: ClassPrediction) -> Array:
        """Return the image, shape (height, width, channels), with its first classes below, as RGB."""
        return with_caption(pixels, "\n".join(_class_text(one) for one in prediction.top[:SHOWN]))

    def _label(self, index: int) -> str:
        return self.signature.labels[index] if index < len(self.signature.labels) else str(index)

    @staticmethod
    def _probabilities(scores: np.ndarray) -> np.ndarray:
        """Return the scores as they are where they are probabilities already, else their softmax."""
        if scores.min(initial=0) >= 0 and np.allclose(scores.sum(axis=1), 1, atol=1e-3):
            return scores
        shifted = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def _class_text(one: ClassConfidence) -> str:
    return one.label if one.confidence is None else f"{one.label} {100 * one.confidence:.1f} %"
