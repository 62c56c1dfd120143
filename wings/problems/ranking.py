"""A score per sample, of which only the order within a group means anything."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, Floats, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.datasets.splits import ArraySplit
from gauntlet.datasets.splitting import GROUPS
from gauntlet.metrics.paired_accuracy import PairedChange
from gauntlet.problems.base import WeightedMetric, ratio
from gauntlet.problems.output_evidence import Evidence, InferredProblem
from wings.problems.uninterpreted_values import UninterpretedValues

DEPTH = 10
"""Samples of a group that count, the best ones, as in most rankings that people read."""


@dataclass(frozen=True)
class Ranking(UninterpretedValues):
    """A score per sample; NDCG of the first ten, the mean over groups, is primary.

    The truth has shape (n, 2): the relevance, 0 or more, and the number of the group. A relevance r gains 2^r - 1
    (Burges et al., ICML 2005). Samples with equal scores share their places. Groups in which all samples are equally
    relevant do not count, because every order of them is right.
    """

    metric: ClassVar[str] = "ndcg_at_10"
    chance_samples: ClassVar[int] = 1_000_000
    """Nearly always all: a few samples of many groups have no order."""

    def predictions(self, output: Array) -> Array | None:
        """Return the scores, shape (n, 1); None for an output with several numbers a sample."""
        return super().predictions(output) if output.size == len(output) else None

    def statistics(self, predictions: Array, truth: Array) -> Floats:
        """Return per sample its share of its group's NDCG of the first ten, of its NDCG of all, and of 1.

        Raises:
            StageError: when a relevance is negative.
        """
        by_group, group = _statistics_of_groups(predictions, truth)
        return np.asarray((by_group / np.bincount(group)[:, None])[group])

    def scores(self, sums: Floats) -> dict[str, Floats]:
        """Return NDCG of the first ten, and of all."""
        return {"ndcg_at_10": ratio(sums[..., 0], sums[..., 2]), "ndcg": ratio(sums[..., 1], sums[..., 2])}

    def loss(self, before: Array, after: Array, truth: Array, *, seed: int = 0) -> PairedChange:
        """Return the drop of NDCG with its 95 % interval: the bootstrap draws groups, which `n` counts.

        Raises:
            StageError: when no group has samples of different relevance.
        """
        first, last = (_statistics_of_groups(scores, truth)[0] for scores in (before, after))
        first, last = first[first[:, 2] > 0], last[last[:, 2] > 0]
        if not len(first):
            raise StageError(
                "labels: no group of the test split has samples of different relevance, so no order is "
                "better than another. Fix: check that the groups are those of the labels"
            )

        def metric(by_group: Floats) -> WeightedMetric:
            return lambda weights: self.scores(weights @ by_group)[self.metric]

        return self._resampled(self.metric, (metric(first), metric(last)), len(first), seed)


def _statistics_of_groups(scores: Array, truth: Array) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Return NDCG of the first ten, NDCG and 1 by group, all 0 where it does not count; and each sample's group."""
    if truth.ndim != 2:
        raise StageError("labels of a ranking need the group of each sample, shape (samples, 2)")
    relevance = truth[:, 0].astype(np.float64)
    if relevance.min(initial=0) < 0:
        raise StageError(f"labels: a relevance of {relevance.min():g}; expected 0 (irrelevant) or more")
    # One that is not a number is last, and shares its place: by chance it would keep the order of the file.
    values = np.nan_to_num(scores.reshape(-1).astype(np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    _, first, group = np.unique(truth[:, 1], return_index=True, return_inverse=True)
    group = group.reshape(-1)
    counted = (np.bincount(group, relevance != relevance[first][group]) > 0).astype(np.float64)
    gain = np.exp2(relevance) - 1
    parts = (ratio(_dcg(values, gain, group, depth), _dcg(gain, gain, group, depth)) for depth in (DEPTH, len(gain)))
    return np.stack([*(part * counted for part in parts), counted], axis=1), group


def _dcg(scores: Floats, gain: Floats, group: npt.NDArray[np.int64], depth: int) -> Floats:
    """Return the discounted cumulative gain of each group's first samples by score, shape (groups,)."""
    order = np.lexsort((-scores, group))
    sizes = np.bincount(group)
    place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    discount = np.where(place < depth, 1 / np.log2(place + 2), 0)
    ordered = scores[order]
    tie = np.cumsum((place == 0) | np.append(True, ordered[1:] != ordered[:-1])) - 1
    shared = np.bincount(tie, discount) / np.bincount(tie)
    return np.asarray(np.bincount(group[order], gain[order] * shared[tie], len(sizes)))


def infer_ranking(known: Evidence, certain: bool) -> Iterator[InferredProblem]:
    """Yield the outputs with one number a sample, where the problem is known; see `infer_problem`."""
    if certain:
        for name, array in known.floats.items():
            if array.size == len(array):
                yield InferredProblem("ranking", f"{name}, as requested", name)


def with_groups(parts: dict[Path, ArraySplit], keys: NamedArrays) -> dict[Path, ArraySplit]:
    """Return parts of the data with the relevance and the number of the group of each sample as labels, shape (n, 2).

    `keys` has the array that names the group of each sample, over all parts; raise StageError where it has not.
    """
    if GROUPS not in keys:
        raise StageError(f"labels of a ranking need groups. Fix: add the array {GROUPS}, or name a column with --group")
    numbers = np.unique(keys[GROUPS], return_inverse=True)[1].reshape(-1)
    ends = np.cumsum([len(part) for part in parts.values()])
    return {
        path: replace(part, labels=np.stack([part.labels, numbers[end - len(part) : end]], axis=1))
        for (path, part), end in zip(parts.items(), ends, strict=True)
        if part.labels is not None
    }
