"""A vector per sample, whose neighbors share its class."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, Floats, NamedArrays
from gauntlet.metrics.class_drops import ClassDrop, mean_change
from gauntlet.problems.base import Problem, WeightedMetric
from gauntlet.problems.output_evidence import SUM_TOLERANCE, Evidence, InferredProblem, is_named
from gauntlet.problems.prediction import Prediction

MAX_VALUES = 4
MIN_EMBEDDING = 16
"""Values of an embedding; shorter vectors of length 1 are directions and rotations."""
NORMALIZATIONS = ("LpNormalization", "LayerNormalization", "BatchNormalization", "Div")
EMBEDDING_NAMES = re.compile(r"\w*(embeddings?|embeds?|features?)", re.IGNORECASE)
ROWS = 1024
"""Of a matrix of similarities, at once."""


class VectorPrediction(Prediction):
    """The vector, scaled to length 1."""

    vector: tuple[float, ...]

    def lines(self) -> list[str]:
        """Return the parts of the prediction."""
        return [f"{value:.3f}" for value in self.vector[:MAX_VALUES]] + ["..."] * (len(self.vector) > MAX_VALUES)


@dataclass(frozen=True)
class Embedding(Problem):
    """A vector per sample, compared by cosine similarity.

    Recall at 1, the share of samples whose nearest other sample has their class, is primary.
    """

    metric: ClassVar[str] = "recall_at_1"
    agreement_metric: ClassVar[str] = "cosine"
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
        return np.stack([truth[_nearest(predictions, predictions)] == truth, np.ones(len(truth))], axis=1).astype(
            np.float64
        )

    def scores(self, sums: Floats) -> dict[str, Floats]:
        """Return recall at 1."""
        return {"recall_at_1": sums[..., 0] / sums[..., 1]}

    def mean_change(self, expected: Array, actual: Array) -> ClassDrop | None:
        """Return how far lengths are from 1 where the reference's are 1, so that dot products compare its vectors."""
        before, after = (abs(np.linalg.norm(vectors.astype(float), axis=1) - 1) for vectors in (expected, actual))
        return mean_change("distance of the length from 1", before, after) if before.max() <= SUM_TOLERANCE else None

    def agreement(self, before: Array, after: Array) -> WeightedMetric:
        """Return the mean cosine similarity of what vectors differ by: a part that all samples share is left out."""
        cosines = _centered_cosines(before, after)
        return lambda weights: weights @ cosines / weights.sum(axis=1)

    def expected_drop(self, outputs: NamedArrays, before: Array, after: Array) -> WeightedMetric:
        """Return how much less similar the neighbors are that the candidate's vectors find among the reference's.

        In cosine similarity to the nearest other sample: a small shift in a dense part of the space changes neighbors.
        """
        nearest, chosen = (before[_nearest(before, vectors)] for vectors in (before, after))
        farther = _centered_cosines(before, nearest) - _centered_cosines(before, chosen)
        return lambda weights: weights @ farther / weights.sum(axis=1)

    def differences(self, before: Array, after: Array) -> str:
        """Return the mean cosine similarity."""
        return f"mean cosine {_centered_cosines(before, after).mean():.4f}, centered"

    def samples_per_class(self, truth: Array) -> list[int]:
        """Return how many samples have each class."""
        return [int(count) for count in np.bincount(truth, minlength=len(self.signature.labels))]


def _centered_cosines(before: Array, after: Array) -> Floats:
    """Return the cosine similarity of each sample's two vectors without the mean of those before, shape (n,)."""
    first, second = before.astype(np.float64), after.astype(np.float64)
    mean = first.mean(axis=0) if len(first) > 1 else 0.0
    first, second = first - mean, second - mean
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    equal = (first == second).all(axis=1).astype(np.float64)
    return np.asarray(np.where(lengths > 0, (first * second).sum(axis=1) / np.maximum(lengths, 1e-300), equal))


def _nearest(vectors: Array, queries: Array) -> npt.NDArray[np.int64]:
    """Return for each query the index of the nearest vector of another sample, shape (n,)."""
    wide, nearest = vectors.astype(np.float64), []
    for start in range(0, len(wide), ROWS):
        similarity = queries[start : start + ROWS].astype(np.float64) @ wide.T
        similarity[np.arange(len(similarity)), np.arange(start, start + len(similarity))] = -np.inf
        nearest.append(similarity.argmax(axis=1))
    return np.concatenate(nearest)


def infer_embedding(known: Evidence, certain: bool) -> Iterator[InferredProblem]:
    """Yield the outputs that hold a vector for each sample; see `infer_problem`."""
    for name, vectors in known.rows.items():
        size = vectors.shape[1]
        if size >= MIN_EMBEDDING and np.allclose(np.linalg.norm(vectors.astype(float), axis=1), 1, 0, SUM_TOLERANCE):
            yield InferredProblem("embedding", f"{name} [n, {size}] holds vectors of length 1", name)
        elif size >= MIN_EMBEDDING and is_named(name, EMBEDDING_NAMES) and known.last(name) in NORMALIZATIONS:
            why = f"is normalized by {known.last(name)} and has the name of an embedding"
            yield InferredProblem("embedding", f"{name} [n, {size}] {why}", name)
        elif certain:
            yield InferredProblem("embedding", f"{name}, as requested", name)
