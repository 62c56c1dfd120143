"""Nothing is known of the outputs: they are predictions as they are."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.ragged import without_padding
from gauntlet.problems.base import Problem
from gauntlet.problems.prediction import Prediction

MAX_VALUES = 4


class ArraysPrediction(Prediction):
    """The outputs for one sample."""

    outputs: dict[str, Any]

    def lines(self) -> list[str]:
        """Return the first values of each output."""
        return [f"{name}: {_first_values(value)}" for name, value in self.outputs.items()]

    def text(self) -> str:
        """Return the first values of each output, in one line."""
        return "; ".join(self.lines())


@dataclass(frozen=True)
class Arrays(Problem):
    """A model whose outputs have no meaning that anyone has named: there is no metric, only noise."""

    metric: ClassVar[str] = ""

    def decode(self, outputs: NamedArrays) -> Iterator[ArraysPrediction]:
        """Yield the outputs of each sample."""
        for index in range(len(next(iter(outputs.values())))):
            yield ArraysPrediction(
                outputs={name: without_padding(array[index]).tolist() for name, array in outputs.items()}
            )

    @property
    def outputs_read(self) -> tuple[str, ...]:
        """None: the values of every output are the result."""
        return ()

    def predictions(self, output: Array) -> None:
        """Return None: no output is a prediction."""
        return


def _first_values(value: Any) -> str:
    values = list(islice(_flat(value), MAX_VALUES + 1))
    texts = [f"{v:.4g}" if isinstance(v, float) else str(v) for v in values[:MAX_VALUES]]
    return ", ".join(texts + ["..."] * (len(values) > MAX_VALUES))


def _flat(value: Any) -> Iterator[Any]:
    """Yield the values of nested lists."""
    if isinstance(value, list):
        for part in value:
            yield from _flat(part)
    else:
        yield value
