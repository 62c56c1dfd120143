"""Quantiles of a number that nobody knows yet: forecasts with an interval."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from gauntlet.core.arrays import Array, Floats
from gauntlet.core.errors import StageError
from gauntlet.problems.base import ratio
from gauntlet.problems.output_evidence import Evidence, InferredProblem
from wings.problems.uninterpreted_values import UninterpretedValues


@dataclass(frozen=True)
class Quantiles(UninterpretedValues):
    """A quantile per label, which is its level; D² of the pinball loss, the mean over levels, is primary.

    D² is 1 for a loss of 0, and 0 for the loss of the truth's own quantiles (Koenker and Machado, JASA 1999). The truth
    has shape (n,).
    """

    metric: ClassVar[str] = "d2_pinball"

    def __post_init__(self) -> None:
        if self.signature.labels and not _are_levels(self.signature.labels):
            raise StageError(
                f"data.labels: {', '.join(self.signature.labels[:5])}: not levels of quantiles, which are increasing "
                "numbers between 0 and 1. Fix: name the level of each value with data.labels or --labels, as 0.5"
            )

    @property
    def levels(self) -> Floats:
        """The level of each quantile, between 0 and 1."""
        return np.array(self.signature.labels, np.float64)

    def predictions(self, output: Array) -> Array | None:
        """Return the quantiles, shape (n, levels); None for an output with another number of values."""
        values, known = super().predictions(output), len(self.signature.labels)
        return values if values is not None and known in (0, values.shape[1]) else None

    def statistics(self, predictions: Array, truth: Array) -> Floats:
        """Return per sample and level: pinball loss, that of the truth's quantile, and 1 where the truth is not above.

        The last two are 1 where a quantile is below one of a lower level, and 1.
        """
        expected, quantiles = truth.reshape(-1, 1).astype(np.float64), predictions.astype(np.float64)
        constant = np.quantile(expected, self.levels)
        losses = (self._pinball(expected - values) for values in (quantiles, constant))
        covered, crossed = expected <= quantiles, (np.diff(quantiles, axis=1) < 0).any(axis=1, keepdims=True)
        return np.concatenate([*losses, covered, crossed, np.ones_like(expected)], axis=1)

    def _pinball(self, error: Floats) -> Floats:
        """Return the loss of truth minus quantile, shape (n, levels)."""
        return np.maximum(self.levels * error, (self.levels - 1) * error)

    def scores(self, sums: Floats) -> dict[str, Floats]:
        """Return D², pinball loss, the mean error of the share of samples below, and the share of crossed quantiles."""
        count = sums[..., -1]
        loss, constant, covered = np.split(sums[..., :-2], 3, axis=-1)
        d2 = np.where(constant > 0, 1 - ratio(loss, constant), np.where(loss == 0, 1.0, 0.0))
        off = np.abs(covered / count[..., None] - self.levels)
        return {
            "d2_pinball": d2.mean(axis=-1),
            "pinball_loss": loss.mean(axis=-1) / count,
            "coverage_error": off.mean(axis=-1),
            "crossed": sums[..., -2] / count,
        }


def _are_levels(names: Sequence[str]) -> bool:
    """Return whether names are increasing numbers between 0 and 1."""
    try:
        levels = [0.0, *map(float, names), 1.0]
    except ValueError:
        return False
    return all(low < high for low, high in pairwise(levels))


def infer_quantiles(known: Evidence, certain: bool) -> Iterator[InferredProblem]:
    """Yield the outputs with a value per level, where the problem is known; see `infer_problem`."""
    for name, array in known.floats.items() if certain else ():
        if array.ndim == 2 and known.classes in (0, array.shape[1]):
            yield InferredProblem("quantiles", f"{name}, as requested", name)
