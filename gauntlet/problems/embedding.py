"""A vector per sample, whose neighbors share its class."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.problems.base import Floats, MetricLoss, Problem
from gauntlet.problems.prediction import Prediction

MOST_VALUES = 4


class VectorPrediction(Prediction):
    """The vector, scaled to length 1."""

    vector: tuple[float, ...]

    def lines(self) -> list[str]:
        """Return the parts of the prediction."""
        return [f"{value:.3f}" for value in self.vector[:MOST_VALUES]] + ["..."] * (len(self.vector) > MOST_VALUES)


@dataclass(frozen=True)
class Embedding(Problem):
    """A vector per sample, compared by cosine similarity.

    Recall at 1, the share of samples whose nearest other sample has their class, is primary.
    """

    metric: ClassVar[str] = "recall_at_1"
    can_be_drawn: ClassVar[bool] = False

    def decode(self, outputs: NamedArrays) -> Iterator[VectorPrediction]:
        """Yield the vector of each sample."""
        vectors = self.predictions(outputs[self.primary_output])
        for vector in () if vectors is None else vectors.tolist():
            yield VectorPrediction(vector=tuple(vector))

    def predictions(self, output: Array) -> Array | None:
        """Return the vectors scaled to length 1, shape (n, size)."""
        if output.dtype.kind != "f" or output.ndim != 2 or output.shape[1] < 2:
            return None
        lengths = np.linalg.norm(output, axis=1, keepdims=True)
        return np.asarray(output / np.where(lengths == 0, 1, lengths))

    def statistics(self, predictions: Array, truth: Array) -> Floats:
        """Return per sample: whether its nearest other sample has its class, and 1."""
        nearest = np.concatenate([_nearest(predictions, start) for start in range(0, len(truth), 1024)])
        return np.stack([truth[nearest] == truth, np.ones(len(truth))], axis=1).astype(np.float64)

    def scores(self, sums: Floats) -> dict[str, Floats]:
        """Return recall at 1."""
        return {"recall_at_1": sums[..., 0] / sums[..., 1]}

    def agreement(self, before: Array, after: Array) -> float:
        """Return the mean cosine similarity: vectors are no classes."""
        return float(_cosines(before, after).mean())

    def disagreement(self, before: Array, after: Array) -> MetricLoss:
        """Return how far the mean cosine similarity is below 1, with its 95 % interval."""
        cosines = _cosines(before, after)
        metrics = (lambda weights: np.ones(len(weights)), lambda weights: weights @ cosines / weights.sum(axis=1))
        return self._resampled("cosine", metrics, len(cosines), seed=0)

    def samples_per_class(self, truth: Array) -> list[int]:
        """Return how many samples have each class."""
        return [int(count) for count in np.bincount(truth, minlength=len(self.signature.labels))]


def _cosines(before: Array, after: Array) -> Floats:
    """Return the cosine similarity of each sample's two vectors of length 1, shape (n,)."""
    return np.asarray(np.sum(before.astype(np.float64) * after.astype(np.float64), axis=1))


def _nearest(vectors: Array, start: int) -> npt.NDArray[np.int64]:
    """Return the index of the nearest other sample, for 1024 samples from `start` on."""
    wide = vectors.astype(np.float64)
    similarity = wide[start : start + 1024] @ wide.T
    similarity[np.arange(len(similarity)), np.arange(start, start + len(similarity))] = -np.inf
    return np.asarray(similarity.argmax(axis=1))
