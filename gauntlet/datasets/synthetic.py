"""Random inputs for a model whose owner brought no data: enough to compare and to time, too little to trust ranges."""

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from gauntlet.core.arrays import INDEX_LIMIT, Array, random_values
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.signature import Signature, TensorSpec, signature_from_graph
from gauntlet.datasets.splits import ArraySplit, Dataset
from gauntlet.onnx_model.model_file import read_graph

UNSAID = 16
"""Length of a dynamic axis of which nothing is known."""


class Synthetic(Frozen):
    """Random samples in the types and shapes that an ONNX model declares. There are no labels."""

    kind: Literal["synthetic"] = "synthetic"
    model: Path = Field(description="the ONNX file whose inputs are made")
    samples: int = Field(64, ge=16, le=100_000, description="a third of them calibrates, the others test")
    dynamic_axes: dict[str, int] = Field(
        {}, description="length of each dynamic axis but the batch, by its name; 16 where not said"
    )
    integer_high: int = Field(INDEX_LIMIT, ge=1, description="whole numbers are drawn from 0 to below this")
    no_batch_axis: bool = Field(False, description="the model has no batch axis: each sample is a set of whole inputs")
    seed: int = Field(0, ge=0)

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return (self.model,)

    def load(self) -> Dataset:
        """Draw the samples: normal floats, whole numbers below `high`, truth values.

        Raises:
            StageError: when the model cannot be read, or takes texts.
        """
        said = signature_from_graph(read_graph(self.model))
        whole = self.no_batch_axis or not _has_batch(said)
        rng = np.random.default_rng(self.seed)
        arrays = {
            spec.name: self._draw(spec, (self.samples, *self._shape(spec)[0 if whole else 1 :]), rng)
            for spec in said.inputs
        }
        third = self.samples // 3
        splits = {
            "calibration": ArraySplit({name: array[:third] for name, array in arrays.items()}),
            "test": ArraySplit({name: array[third:] for name, array in arrays.items()}),
        }
        return Dataset(splits, said.replace(outputs=()))

    def _shape(self, spec: TensorSpec) -> tuple[int, ...]:
        return tuple(axis if isinstance(axis, int) else self.dynamic_axes.get(axis, UNSAID) for axis in spec.shape)

    def _draw(self, spec: TensorSpec, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        try:
            return random_values(np.dtype(spec.dtype), shape, rng, self.integer_high)
        except (TypeError, ValueError) as error:
            raise StageError(
                f"{self.model}: input '{spec.name}' is of type {spec.dtype}, which cannot be drawn; "
                "bring samples: data.kind arrays"
            ) from error


def _has_batch(said: Signature) -> bool:
    """Tell whether all tensors begin with one and the same axis; else each sample is a set of whole inputs."""
    firsts = {spec.shape[0] if spec.shape else None for spec in said.inputs}
    fixed = {spec.shape[0] for spec in said.outputs if spec.shape and isinstance(spec.shape[0], int)}
    if len(firsts) != 1 or None in firsts or not all(spec.shape for spec in said.outputs):
        return False
    return fixed <= firsts
