"""Nothing is known of the outputs: they are predictions as they are."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.signature import Signature
from gauntlet.problems.prediction import Prediction


class ArraysPrediction(Prediction):
    """The outputs for one sample."""

    outputs: dict[str, Any]


@dataclass(frozen=True)
class Arrays:
    """A model whose outputs have no meaning that anyone has named."""

    signature: Signature

    def decode(self, outputs: NamedArrays) -> Iterator[ArraysPrediction]:
        """Yield one prediction per sample; outputs have shape (n, ...)."""
        for index in range(len(next(iter(outputs.values())))):
            yield ArraysPrediction(outputs={name: array[index].tolist() for name, array in outputs.items()})
