"""Random inputs for a model without data: good enough to compare and to time, not for calibration ranges."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from gauntlet.core.arrays import NamedArrays, random_values
from gauntlet.core.errors import StageError
from gauntlet.core.report import Check
from gauntlet.core.signature import BoxDecoding, Signature, Task, TensorSpec, signature_from_graph
from gauntlet.datasets.splits import ArraySplit, Dataset, DataSource
from gauntlet.onnx_model.model_file import read_graph

DEFAULT_LENGTH = 16
"""Length of a dynamic axis that the configuration does not set."""


class Synthetic(DataSource):
    """Random samples in the types and shapes that an ONNX model declares, or that are listed. There are no labels."""

    kind: Literal["synthetic"] = "synthetic"
    model: Path | None = Field(None, description="the ONNX file that declares the inputs")
    inputs: tuple[TensorSpec, ...] = Field((), description="of any other model; the first axis is the batch")
    layout: Literal["NCHW", "NHWC", "none"] = Field("none", description="of the listed inputs, where they are images")
    task: Task = Field("arrays", description="what the outputs mean")
    labels: tuple[str, ...] = Field((), description="names of classes, in the order of their indices")
    decode: BoxDecoding | None = Field(None, description="of a detector: how its outputs become boxes")
    samples: int = Field(64, ge=16, le=100_000, description="a third of them for calibration, the others for the test")
    dynamic_axes: dict[str, int] = Field({}, description="lengths of dynamic axes but the batch, by name; default 16")
    no_batch_axis: bool = Field(False, description="each sample is a full set of inputs, without a batch axis")
    seed: int = Field(0, ge=0)

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return () if self.model is None else (self.model,)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.model is None) == (not self.inputs):
            raise ValueError("give either model, an ONNX file, or inputs, a list of name, dtype and shape")
        return self

    def load(self) -> Dataset:
        """Draw the samples; raise StageError if the model cannot be read or takes strings."""
        signature = Signature(task="arrays", inputs=self.inputs, outputs=(), layout=self.layout)
        if self.model is not None:
            signature = signature_from_graph(read_graph(self.model))
        lengths, whole = self.dynamic_axes, self.no_batch_axis
        arrays = draw_samples(signature, self.samples, lengths, no_batch_axis=whole, seed=self.seed)
        third = self.samples // 3
        splits = {
            "calibration": ArraySplit({name: array[:third] for name, array in arrays.items()}),
            "test": ArraySplit({name: array[third:] for name, array in arrays.items()}),
        }
        noise = "the winner was calibrated and tested on random inputs: on real ones its accuracy and ranges may differ"
        fix = "bring real samples (data.kind: arrays)"
        random = Check.of("data.random_samples", self.samples, "==", 0, noise, fix, unit="samples", severity="warning")
        meaning = {"task": self.task, "labels": self.labels, "decode": self.decode}
        return Dataset(splits, signature.replace(outputs=(), **meaning), checks=(random,), random=True)


def draw_samples(
    signature: Signature, samples: int, lengths: Mapping[str, int], *, no_batch_axis: bool = False, seed: int = 0
) -> NamedArrays:
    """Return random samples for the inputs of a signature, each of shape (samples, ...).

    `lengths` are those of open axes, by name, 16 where there is none; with `no_batch_axis`, each sample is a whole
    input. Raise StageError for an input of strings.
    """
    skipped_axes = 1 if has_batch(signature) and not no_batch_axis else 0
    rng = np.random.default_rng(seed)
    arrays: NamedArrays = {}
    for spec in signature.inputs:
        axes = spec.shape[skipped_axes:]
        shape = tuple(axis if isinstance(axis, int) else lengths.get(axis, DEFAULT_LENGTH) for axis in axes)
        try:
            arrays[spec.name] = random_values(np.dtype(spec.dtype), (samples, *shape), rng)
        except (TypeError, ValueError) as error:
            raise StageError(
                f"no random values for input '{spec.name}' of type {spec.dtype}. "
                "Fix: bring samples (--data FILE.npz, or data.kind: arrays)"
            ) from error
    return arrays


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
