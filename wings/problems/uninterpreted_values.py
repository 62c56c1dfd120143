"""What rankings and quantiles share: where the truth is unknown, their outputs are compared as numbers."""

from dataclasses import dataclass
from typing import ClassVar

from gauntlet.core.arrays import Array
from gauntlet.metrics.class_drops import ClassDrop
from gauntlet.problems.base import WeightedMetric
from wings.problems.regression import Regression


@dataclass(frozen=True)
class UninterpretedValues(Regression):
    """Numbers that the truth alone gives another metric than R²."""

    agreement_metric: ClassVar[str] = "r2"

    def agreement(self, before: Array, after: Array) -> WeightedMetric:
        """Return R² of the candidate's numbers where those of the reference are the truth."""
        return Regression(self.signature).agreement(before, after)

    def largest_class_drop(self, before: Array, after: Array, truth: Array | None = None) -> ClassDrop | None:
        """Return which number changes most; None with the truth, which is no value of each number."""
        return super().largest_class_drop(before, after) if truth is None else None

    def differences(self, before: Array, after: Array) -> str:
        """Return R² against the numbers of the reference."""
        return Regression(self.signature).differences(before, after)
