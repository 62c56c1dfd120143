"""Nothing is known of the outputs: they are predictions as they are."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.problems.base import Floats, Problem
from gauntlet.problems.prediction import Prediction


class ArraysPrediction(Prediction):
    """The outputs for one sample."""

    outputs: dict[str, Any]


@dataclass(frozen=True)
class Arrays(Problem):
    """A model whose outputs have no meaning that anyone has named: there is no metric, only noise."""

    metric: ClassVar[str] = ""

    def decode(self, outputs: NamedArrays) -> Iterator[ArraysPrediction]:
        """Yield the outputs of each sample."""
        for index in range(len(next(iter(outputs.values())))):
            yield ArraysPrediction(outputs={name: array[index].tolist() for name, array in outputs.items()})

    def predictions(self, output: Array) -> None:
        """Return None: no output is a prediction."""
        return

    def statistics(self, predictions: Array, truth: Array) -> Floats:
        """Raise `NotImplementedError`: there are no predictions."""
        raise NotImplementedError

    def scores(self, sums: Floats) -> dict[str, Floats]:
        """Raise `NotImplementedError`: there are no predictions."""
        raise NotImplementedError
