"""Random inputs for a model without data: good enough to compare and to time, not for calibration ranges."""

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from gauntlet.core.arrays import INDEX_LIMIT, Array, random_values
from gauntlet.core.errors import StageError
from gauntlet.core.report import Check
from gauntlet.core.signature import Signature, TensorSpec, signature_from_graph
from gauntlet.datasets.splits import ArraySplit, Dataset, DataSource
from gauntlet.onnx_model.model_file import read_graph

DEFAULT_LENGTH = 16
"""Length of a dynamic axis that the configuration does not set."""


class Synthetic(DataSource):
    """Random samples in the types and shapes that an ONNX model declares. There are no labels."""

    kind: Literal["synthetic"] = "synthetic"
    model: Path = Field(description="the ONNX file that declares the inputs")
    samples: int = Field(64, ge=16, le=100_000, description="a third of them for calibration, the others for the test")
    dynamic_axes: dict[str, int] = Field({}, description="lengths of dynamic axes but the batch, by name; default 16")
    integer_high: int = Field(INDEX_LIMIT, ge=1, description="integers are drawn from 0 to below this")
    no_batch_axis: bool = Field(False, description="the model has no batch axis: each sample is a full set of inputs")
    seed: int = Field(0, ge=0)

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return (self.model,)

    def load(self) -> Dataset:
        """Draw the samples; raise StageError if the model cannot be read or takes strings."""
        signature = signature_from_graph(read_graph(self.model))
        skipped_axes = 1 if has_batch(signature) and not self.no_batch_axis else 0
        rng = np.random.default_rng(self.seed)
        arrays = {spec.name: self._draw(spec, skipped_axes, rng) for spec in signature.inputs}
        third = self.samples // 3
        splits = {
            "calibration": ArraySplit({name: array[:third] for name, array in arrays.items()}),
            "test": ArraySplit({name: array[third:] for name, array in arrays.items()}),
        }
        random = Check.of(
            "data.random_samples",
            self.samples,
            "==",
            0,
            "the winner was calibrated and tested on random inputs: on real ones its accuracy and ranges may differ",
            "bring real samples (data.kind: arrays)",
            unit="samples",
            severity="warning",
        )
        return Dataset(splits, signature.replace(outputs=()), checks=(random,))

    def _draw(self, spec: TensorSpec, skipped_axes: int, rng: np.random.Generator) -> Array:
        shape = [axis if isinstance(axis, int) else self.dynamic_axes.get(axis, DEFAULT_LENGTH) for axis in spec.shape]
        try:
            return random_values(np.dtype(spec.dtype), (self.samples, *shape[skipped_axes:]), rng, self.integer_high)
        except (TypeError, ValueError) as error:
            raise StageError(
                f"{self.model}: no random values for input '{spec.name}' of type {spec.dtype}. "
                "Fix: bring samples (data.kind: arrays)"
            ) from error


def has_batch(signature: Signature) -> bool:
    """Return whether all tensors share their first axis."""
    if not all(spec.shape for spec in (*signature.inputs, *signature.outputs)):
        return False
    firsts = {spec.shape[0] for spec in signature.inputs}
    later = {axis for spec in signature.inputs for axis in spec.shape[1:]} - firsts
    outputs = {spec.shape[0] for spec in signature.outputs}
    fixed = {axis for axis in outputs if isinstance(axis, int)}
    named = outputs - fixed
    return len(firsts) == 1 and fixed <= firsts and not named & later  # `later`: a batch that is the second axis
