"""Any number of classes per sample."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, Floats, NamedArrays
from gauntlet.core.frozen import Number
from gauntlet.metrics.class_scores import ClassCounts
from gauntlet.metrics.error_metrics import within_unit
from gauntlet.problems.base import Problem, WeightedMetric, probabilities, ratio
from gauntlet.problems.output_evidence import (
    CLASS_NAMES,
    Evidence,
    InferredProblem,
    are_decided,
    is_named,
    sums_to_one,
)
from gauntlet.problems.prediction import Prediction

THRESHOLD = 0.5


class LabelsPrediction(Prediction):
    """The probability of each class that is predicted, highest first."""

    labels: dict[str, Number]

    def lines(self) -> list[str]:
        """Return the parts of the prediction."""
        return [f"{name} {value:.1%}" for name, value in self.labels.items()] or ["none"]


@dataclass(frozen=True)
class MultiLabel(Problem):
    """An independent score per class: predicted from a probability of 0.5 on. Macro F1 is primary."""

    metric: ClassVar[str] = "macro_f1"
    differing: ClassVar[str] = "samples have other labels"

    def decode(self, outputs: NamedArrays) -> Iterator[Prediction]:
        """Yield the predicted classes of each sample."""
        for row in self._probabilities(outputs[self.primary_output]):
            best = [int(i) for i in np.argsort(-row, kind="stable") if row[i] >= THRESHOLD]
            yield LabelsPrediction(labels={self.label(i): float(row[i]) for i in best})

    def predictions(self, output: Array) -> Array | None:
        """Return whether each class is predicted, 0 or 1, shape (n, classes)."""
        if output.ndim != 2:
            return None
        if output.dtype.kind != "f":
            return output if output.dtype.kind in "iub" else None
        return (self._probabilities(output) >= THRESHOLD).astype(np.int64)

    def statistics(self, predictions: Array, truth: Array) -> Floats:
        """Return per sample and class: true positive, false positive, false negative; then whether all are right."""
        predicted, expected = predictions.astype(bool), truth.astype(bool)
        right = (predicted == expected).all(axis=1, keepdims=True)
        parts = (predicted & expected, predicted & ~expected, ~predicted & expected, right, np.ones_like(right))
        return np.concatenate(parts, axis=1).astype(np.float64)

    def same(self, before: Array, after: Array) -> npt.NDArray[np.bool_]:
        """Return for which samples both predict the same classes."""
        return np.asarray((before.astype(bool) == after.astype(bool)).all(axis=1))

    def expected_drop(self, outputs: NamedArrays, before: Array, after: Array) -> WeightedMetric:
        """Return the drop of macro F1 by the reference's own probabilities of each class."""
        if (known := self.believed(outputs, before, after)) is None:
            return super().expected_drop(outputs, before, after)
        belief, *chosen = known
        parts = (part for predicted in chosen for part in (belief * predicted, belief + predicted))
        classes = belief.shape[-1]
        counts = np.concatenate([part.reshape(len(part), -1, classes).sum(axis=1) for part in parts], axis=1)

        def drop(weights: Floats) -> Floats:
            parts = np.split(weights @ counts, 4, axis=1)
            first, last = (ratio(2 * parts[i], parts[i + 1], empty=1.0).reshape(-1, classes) for i in (0, 2))
            return np.asarray((first - last).mean(axis=1))

        return drop

    def believed(self, outputs: NamedArrays, before: Array, after: Array) -> tuple[Floats, Floats, Floats] | None:
        """Return the reference's probability of each class, and what both models predict; None without scores."""
        scores = outputs[self.primary_output]
        if scores.dtype.kind != "f":
            return None
        return self._probabilities(scores), before.astype(np.float64), after.astype(np.float64)

    def missing_evidence(self, before: Array) -> str:
        """Return that no label is predicted, if so."""
        return "" if before.any() else "no label is predicted"

    def scores(self, sums: Floats) -> dict[str, Floats]:
        """Return macro F1, micro F1 and exact match; a class that neither occurs nor is predicted counts as right."""
        hits, false, missed = np.split(sums[..., :-2], 3, axis=-1)
        f1 = ratio(2 * hits, 2 * hits + false + missed, empty=1.0)
        total = tuple(part.sum(axis=-1) for part in (hits, false, missed))
        micro = ratio(2 * total[0], 2 * total[0] + total[1] + total[2], empty=1.0)
        return {"macro_f1": f1.mean(axis=-1), "micro_f1": micro, "exact_match": sums[..., -2] / sums[..., -1]}

    def class_probabilities(self, output: Array) -> Floats | None:
        """Return the probability of each class."""
        return self._probabilities(output) if output.ndim == 2 else None

    def membership(self, truth: Array, classes: int) -> Floats:
        """Return the truth."""
        return truth.astype(bool).astype(np.float64)

    def _probabilities(self, scores: Array) -> Floats:
        return probabilities(scores, logit=self.signature.logit)

    def class_counts(self, predictions: Array, truth: Array) -> ClassCounts:
        """Return which classes each sample has."""
        predicted, expected = (labels.astype(bool).astype(np.float64) for labels in (predictions, truth))
        return ClassCounts(predicted * expected, predicted, expected)

    def samples_per_class(self, truth: Array) -> list[int]:
        """Return how many samples have each class."""
        return [int(count) for count in truth.astype(bool).sum(axis=0)]


def infer_labels(known: Evidence, certain: bool) -> Iterator[InferredProblem]:
    """Yield the outputs that hold an independent probability for each class; see `infer_problem`."""
    for name, values in known.rows.items():
        ends = known.last(name) == "Sigmoid" or (known.graph is None and within_unit(values))
        if not certain and (not ends or sums_to_one(values)):
            continue
        decided = known.real and are_decided(values)
        if certain or decided or is_named(name, CLASS_NAMES) or values.shape[1] == known.classes:
            why = "holds an independent probability for each class" if ends else "as requested"
            yield InferredProblem("multi-label", f"{name} [n, {values.shape[1]}] {why}", name)
