"""A class for each position of a sample: parts of speech, named entities, the phonemes of a recording."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, Floats, NamedArrays
from gauntlet.metrics.class_scores import ClassCounts
from gauntlet.problems.base import beliefs
from gauntlet.problems.output_evidence import Evidence, InferredProblem
from gauntlet.problems.prediction import Prediction
from wings.multi_label.multi_label import MultiLabel

SHOWN = 12


class TagsPrediction(Prediction):
    """The class of each position."""

    tags: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the first classes."""
        return [" ".join(self.tags[:SHOWN]) + " ..." * (len(self.tags) > SHOWN)]


@dataclass(frozen=True)
class Tagging(MultiLabel):
    """Scores of each class by position, shape (n, positions, classes), or the classes themselves. Macro F1 is primary.

    Scores may also have the shape (n, classes, positions), where only that fits the labels. Positions whose truth is
    negative do not count, as -100 of padding and of a word's further parts.
    """

    differing: ClassVar[str] = "classes differ"

    def decode(self, outputs: NamedArrays) -> Iterator[TagsPrediction]:
        """Yield the classes of each sample."""
        tags = self.predictions(outputs[self.primary_output])
        for row in () if tags is None else tags.tolist():
            yield TagsPrediction(tags=tuple(map(self.label, row)))

    def predictions(self, output: Array) -> Array | None:
        """Return the class of each position, shape (n, positions)."""
        if output.dtype.kind in "iu":
            return output if output.ndim == 2 else None
        if output.dtype.kind != "f" or output.ndim != 3:
            return None
        return np.asarray(output.argmax(axis=self._axis(output)), np.int64)

    def _axis(self, scores: Array) -> int:
        return 1 if scores.shape[2] != len(self.signature.labels) == scores.shape[1] else 2

    def statistics(self, predictions: Array, truth: Array) -> Floats:
        """Return per sample and class: right, wrong and missed positions; then whether all are right, and 1."""
        hits, predicted, actual = self._counts(predictions, truth)
        right = ((predictions == truth) | (truth.astype(np.int64) < 0)).all(axis=1, keepdims=True)
        return np.concatenate([hits, predicted - hits, actual - hits, right, np.ones_like(right)], axis=1, dtype=float)

    def _counts(self, predictions: Array, truth: Array) -> tuple[Floats, Floats, Floats]:
        """Return right, predicted and actual positions of each class, each of shape (n, classes)."""
        expected = truth.astype(np.int64)
        counted, classes = expected >= 0, max(len(self.signature.labels), int(expected.max(initial=0)) + 1)
        pairs = [((predictions == k) & counted, expected == k) for k in range(classes)]
        parts = ([a & b for a, b in pairs], [a for a, _ in pairs], [b for _, b in pairs])
        hits, predicted, actual = (np.stack([mask.sum(axis=1) for mask in part], 1, dtype=float) for part in parts)
        return hits, predicted, actual

    def same(self, before: Array, after: Array) -> npt.NDArray[np.bool_]:
        """Return for which positions both predict the same class; flat."""
        return np.asarray(before == after).ravel()

    def believed(self, outputs: NamedArrays, before: Array, after: Array) -> tuple[Floats, Floats, Floats] | None:
        """Return the probability of each class by position, and what is predicted, shape (n, positions, classes)."""
        scores = outputs[self.primary_output]
        belief = beliefs(scores, self._axis(scores)) if scores.dtype.kind == "f" else None
        if belief is None:
            return None
        belief = np.moveaxis(belief, self._axis(scores), 2)
        first, last = (np.eye(belief.shape[2])[predicted] for predicted in (before, after))
        return belief, first, last

    def class_probabilities(self, output: Array) -> None:
        """Return None: one sample has many classes."""
        return

    def missing_evidence(self, before: Array) -> str:
        """Return that only one class is predicted, if so."""
        return "" if len(np.unique(before)) > 1 else "every position has the same class"

    def class_counts(self, predictions: Array, truth: Array) -> ClassCounts:
        """Return the positions of each class."""
        return ClassCounts(*self._counts(predictions, truth))

    def samples_per_class(self, truth: Array) -> list[int]:
        """Return how many samples show each class."""
        return [int((truth == number).any(axis=1).sum()) for number in range(len(self.signature.labels))]


def infer_tags(known: Evidence, certain: bool) -> Iterator[InferredProblem]:
    """Yield the outputs with scores of classes by position, where the problem is known; see `infer_problem`."""
    for name, array in known.outputs.items() if certain else ():
        if (array.dtype.kind == "f" and array.ndim == 3) or (array.dtype.kind in "iu" and array.ndim == 2):
            yield InferredProblem("tagging", f"{name}, as requested", name)
