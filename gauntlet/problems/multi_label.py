"""Any number of classes per sample."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.frozen import Number
from gauntlet.problems.base import Floats, Problem, probabilities, ratio
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

    def decode(self, outputs: NamedArrays) -> Iterator[LabelsPrediction]:
        """Yield the predicted classes of each sample."""
        for row in probabilities(outputs[self.primary_output]):
            best = [int(i) for i in np.argsort(-row, kind="stable") if row[i] >= THRESHOLD]
            yield LabelsPrediction(labels={self._label(i): float(row[i]) for i in best})

    def _label(self, index: int) -> str:
        return self.signature.labels[index] if index < len(self.signature.labels) else str(index)

    def predictions(self, output: Array) -> Array | None:
        """Return whether each class is predicted, 0 or 1, shape (n, classes)."""
        if output.ndim != 2:
            return None
        if output.dtype.kind != "f":
            return output if output.dtype.kind in "iub" else None
        return (probabilities(output) >= THRESHOLD).astype(np.int64)

    def statistics(self, predictions: Array, truth: Array) -> Floats:
        """Return per sample and class: true positive, false positive, false negative; then whether all are right."""
        found, wanted = predictions.astype(bool), truth.astype(bool)
        right = (found == wanted).all(axis=1, keepdims=True)
        parts = (found & wanted, found & ~wanted, ~found & wanted, right, np.ones_like(right))
        return np.concatenate(parts, axis=1).astype(np.float64)

    def same(self, before: Array, after: Array) -> npt.NDArray[np.bool_]:
        """Return for which samples both predict the same classes."""
        return np.asarray((before.astype(bool) == after.astype(bool)).all(axis=1))

    def scores(self, sums: Floats) -> dict[str, Floats]:
        """Return macro F1, micro F1 and exact match; a class that neither occurs nor is predicted counts as right."""
        hits, false, missed = np.split(sums[..., :-2], 3, axis=-1)
        f1 = ratio(2 * hits, 2 * hits + false + missed, empty=1.0)
        total = tuple(part.sum(axis=-1) for part in (hits, false, missed))
        micro = ratio(2 * total[0], 2 * total[0] + total[1] + total[2], empty=1.0)
        return {"macro_f1": f1.mean(axis=-1), "micro_f1": micro, "exact_match": sums[..., -2] / sums[..., -1]}

    def samples_per_class(self, truth: Array) -> list[int]:
        """Return how many samples have each class."""
        return [int(count) for count in truth.astype(bool).sum(axis=0)]
