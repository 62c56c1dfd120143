"""One or several numbers per sample."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, Floats, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Number
from gauntlet.metrics.class_drops import ClassDrop, largest_number_drop
from gauntlet.metrics.output_noise import FAINT, usual_samples
from gauntlet.metrics.paired_accuracy import PairedChange
from gauntlet.problems.base import Problem, WeightedMetric, ratio
from gauntlet.problems.output_evidence import Evidence, InferredProblem
from gauntlet.problems.prediction import Prediction

TYPICAL_R2 = 0.8
"""Of a reference whose truth nobody knows."""
USUAL = " without the most extreme samples"


class ValuesPrediction(Prediction):
    """The predicted numbers, by the label of each, or by its position."""

    values: dict[str, Number]

    def lines(self) -> list[str]:
        """Return the parts of the prediction; a single number without a label as it is."""
        alone = list(self.values) == ["0"]
        return [f"{value:.4g}" if alone else f"{name} {value:.4g}" for name, value in self.values.items()]


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

    def loss(self, before: Array, after: Array, truth: Array, *, seed: int = 0) -> PairedChange:
        """Return the drop of R²; in a heavy tail that of the usual samples, if the reference tells them apart."""
        whole, (usual, _) = super().loss(before, after, truth, seed=seed), _usual(truth)
        if usual is None:
            return whole
        rest = super().loss(before[usual], after[usual], truth[usual], seed=seed)
        return rest.replace(metric=whole.metric + USUAL) if rest.before > 0.5 and rest.drop > whole.drop else whole

    def expected_loss(self, outputs: NamedArrays, before: Array, after: Array) -> PairedChange:
        """Return the expected drop; in a heavy tail that of the usual samples, which may differ by chance alone.

        So their noise is measured against no less than a hundredth of the variance of all samples.
        """
        whole, (usual, variance) = super().expected_loss(outputs, before, after), _usual(before)
        if usual is None:
            return whole
        rest, share = super().expected_loss(outputs, before[usual], after[usual]), variance / max(variance, FAINT**2)
        scaled = {name: share * getattr(rest, name) for name in ("drop", "low", "high")}
        rest = rest.replace(metric=whole.metric + USUAL, after=rest.before - scaled["drop"], **scaled)
        return rest if rest.drop > whole.drop else whole

    def expected_drop(self, outputs: NamedArrays, before: Array, after: Array) -> WeightedMetric:
        """Return the drop of R²: independent errors add, and the reference's values vary R² times as the truth does."""
        agreement = self.agreement(before, after)
        return lambda weights: TYPICAL_R2 * (1 - agreement(weights))

    def differences(self, before: Array, after: Array) -> str:
        """Return R² against the values of the reference."""
        return f"R² {self.score(after, before)[self.metric]:.4f} against the reference's values"

    def largest_class_drop(self, before: Array, after: Array, truth: Array | None = None) -> ClassDrop | None:
        """Return which number loses most R²; without the truth, by what the reference's values are expected to have."""
        drop = largest_number_drop(before, after, self.signature.labels, before if truth is None else truth)
        return drop if drop is None or truth is not None else drop.replace(drop_low=TYPICAL_R2 * drop.drop_low)

    def scores(self, sums: Floats) -> dict[str, Floats]:
        """Return R², root of the mean squared error, and mean absolute error."""
        squared, absolute, total, total_squared, count = np.split(sums, 5, axis=-1)
        spread = total_squared - total**2 / count
        # A truth that does not vary has no R²: it counts as 0 unless every prediction is exact.
        r2 = np.where(spread > 1e-12 * total_squared, 1 - ratio(squared, spread), np.where(squared == 0, 1.0, 0.0))
        rmse = np.sqrt((squared / count).mean(axis=-1))
        return {"r2": r2.mean(axis=-1), "rmse": rmse, "mae": (absolute / count).mean(axis=-1)}


def infer_regression(known: Evidence, certain: bool) -> Iterator[InferredProblem]:
    """Yield the outputs that may be numbers; only where the task is certain."""
    if certain:
        possible = (n for n, a in known.outputs.items() if a.dtype.kind == "f" and a.ndim <= 2)
        yield from (InferredProblem("regression", f"{name}, as requested", name) for name in possible)


def _usual(values: Array) -> tuple[npt.NDArray[np.bool_] | None, float]:
    """Return the usual samples, if there are extreme ones, and their share of the variance; all numbers count alike."""
    numbers = values.reshape(len(values), -1).astype(np.float64)
    spread = numbers.std(axis=0)
    numbers /= np.where(spread > 0, spread, 1)
    usual = usual_samples(numbers)
    return usual, 1.0 if usual is None else float(numbers[usual].var(axis=0).mean())
