"""One or several numbers per sample."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Number
from gauntlet.problems.base import Floats, Problem, WeightedMetric, ratio
from gauntlet.problems.prediction import Prediction

TYPICAL_R2 = 0.8
"""Of a reference whose truth nobody knows."""


class ValuesPrediction(Prediction):
    """The predicted numbers, by the label of each, or by its position."""

    values: dict[str, Number]

    def lines(self) -> list[str]:
        """Return the parts of the prediction."""
        return [f"{name} {value:.4g}" for name, value in self.values.items()]


@dataclass(frozen=True)
class Regression(Problem):
    """A number per label; R², the mean over the numbers, is primary."""

    metric: ClassVar[str] = "r2"

    def decode(self, outputs: NamedArrays) -> Iterator[ValuesPrediction]:
        """Yield the numbers of each sample."""
        values = outputs[self.primary_output]
        rows = values.reshape(len(values), -1).astype(float)
        names = self.signature.labels if len(self.signature.labels) == rows.shape[1] else map(str, range(rows.shape[1]))
        titles = tuple(names)
        for row in rows.tolist():
            yield ValuesPrediction(values=dict(zip(titles, row, strict=True)))

    def predictions(self, output: Array) -> Array | None:
        """Return the numbers, shape (n, values)."""
        return output.reshape(len(output), -1) if output.dtype.kind == "f" and output.ndim <= 2 else None

    def statistics(self, predictions: Array, truth: Array) -> Floats:
        """Return per sample and number: squared error, absolute error, truth, its square, and 1.

        Raises:
            StageError: when the truth has another number of values a sample.
        """
        expected = truth.reshape(len(truth), -1).astype(np.float64)
        if predictions.shape != expected.shape:
            raise StageError(
                f"predictions have shape {predictions.shape}, the truth {expected.shape}; expected the same. Fix: name "
                "the output with train.primary_output, or set data.task: classification (classes) or quantiles"
            )
        error = predictions.astype(np.float64) - expected
        parts = (error**2, np.abs(error), expected, expected**2, np.ones_like(expected))
        return np.concatenate(parts, axis=1)

    def expected_drop(self, outputs: NamedArrays, before: Array, after: Array) -> WeightedMetric:
        """Return the drop of R²: independent errors add, and the reference's values vary R² times as the truth does."""
        agreement = self.agreement(before, after)
        return lambda weights: TYPICAL_R2 * (1 - agreement(weights))

    def differences(self, before: Array, after: Array) -> str:
        """Return R² against the values of the reference."""
        return f"R² {self.score(after, before)[self.metric]:.4f} against the reference's values"

    def scores(self, sums: Floats) -> dict[str, Floats]:
        """Return R², root of the mean squared error, and mean absolute error."""
        squared, absolute, total, total_squared, count = np.split(sums, 5, axis=-1)
        spread = total_squared - total**2 / count
        # A truth that does not vary has no R²: it counts as 0 unless every prediction is exact.
        r2 = np.where(spread > 1e-12 * total_squared, 1 - ratio(squared, spread), np.where(squared == 0, 1.0, 0.0))
        rmse = np.sqrt((squared / count).mean(axis=-1))
        return {"r2": r2.mean(axis=-1), "rmse": rmse, "mae": (absolute / count).mean(axis=-1)}
