"""What the checks of one model work on: its graph, its signature, and the caller's hints, read into memory."""

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from gauntlet.core.arrays import Array, NamedArrays, fits_shape
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.signature import Signature
from gauntlet.onnx_model.graph import (
    first_axis,
    format_type,
    read_untrusted_graph,
    required_inputs,
    tensor_shape,
)
from wings.inspection.library.diagnosis.findings import CallerHints, Layout

MAX_FEED_BYTES = 256_000_000
SIZES = (32, 8, 64, 1, 224)
"""Sizes to try for dynamic axes other than the batch: a graph does not say which sizes are valid."""


class InputGenerator:
    """Generates the inputs of one call. Sample i is the same at every batch size."""

    def __init__(self, graph: onnx.GraphProto, data: NamedArrays) -> None:
        self.inputs, self.data = required_inputs(graph), data
        self.batch_names = {axis for i in self.inputs if isinstance(axis := first_axis(i), str)}
        self.takes_batches = any(tensor_shape(i) and not isinstance(first_axis(i), int) for i in self.inputs)
        """Whether any input's first axis is dynamic."""

    def fitting_sizes(self) -> tuple[int, ...]:
        """Return the sizes to try; a single one where no axis depends on it."""
        axes = {axis for i in self.inputs if not self._has_data(i) for axis in (tensor_shape(i) or ())[1:]}
        return SIZES if any(not isinstance(axis, int) for axis in axes - self.batch_names) else SIZES[:1]

    def feeds(self, batch: int) -> Iterator[tuple[int, NamedArrays]]:
        """Yield the inputs to try at one batch size, each with the size of its other dynamic axes."""
        for size in self.fitting_sizes():
            yield size, self.feed(batch, size)

    def feed(self, batch: int, size: int) -> NamedArrays:
        """Return one array per input; `StageError` for inputs other than tensors, and above `MAX_FEED_BYTES`."""
        return {i.name: self._array(i, batch, size) for i in self.inputs}

    def _has_data(self, value: onnx.ValueInfoProto) -> bool:
        array, shape = self.data.get(value.name), tensor_shape(value)
        return array is not None and array.size > 0 and shape is not None and fits_shape(array.shape, shape, skip=1)

    def _array(self, value: onnx.ValueInfoProto, batch: int, size: int) -> Array:
        if not value.type.HasField("tensor_type"):
            raise StageError(f"input '{value.name}' has the type {format_type(value)}; expected a tensor")
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = tuple(
            axis if isinstance(axis, int) else batch if index == 0 or axis in self.batch_names else size
            for index, axis in enumerate(tensor_shape(value) or ())
        )
        needed = math.prod(shape) * dtype.itemsize
        if needed > MAX_FEED_BYTES:
            limit = f"(limit: {MAX_FEED_BYTES / 1e9:.3g} GB)"
            raise StageError(f"input '{value.name}' {format_type(value)} needs {needed / 1e9:.3g} GB per call {limit}")
        if self._has_data(value):
            array = self.data[value.name]
            return (array[np.arange(shape[0]) % len(array)] if shape else array).astype(dtype)
        if dtype.kind == "f":
            rng = np.random.default_rng(zlib.crc32(value.name.encode()))
            return rng.standard_normal(shape).astype(dtype)
        # Zero is a valid index into any table.
        return np.full(shape, "a", dtype=object) if dtype.kind == "O" else np.zeros(shape, dtype)


@dataclass(frozen=True)
class ModelContext:
    """The input of every check. `data` and `constants` are empty where the caller gave none."""

    path: Path
    proto: onnx.ModelProto
    data: NamedArrays
    constants: NamedArrays
    layout: Layout | None

    @property
    def graph(self) -> onnx.GraphProto:
        """The main graph."""
        return self.proto.graph

    @property
    def signature(self) -> Signature | None:
        """The model's signature, or None where it is missing or unreadable."""
        return Signature.find(self.proto)

    @property
    def declared_inputs(self) -> set[str]:
        """The names of the inputs in the signature; empty without one."""
        return {spec.name for spec in self.signature.inputs} if self.signature else set()

    @property
    def generator(self) -> InputGenerator:
        """A generator of the model's inputs, from the caller's samples."""
        return InputGenerator(self.graph, self.data)


def read_context(path: Path, hints: CallerHints) -> ModelContext:
    """Read the graph and the files of the hints; `StageError` or `ConfigError` when that fails."""
    return ModelContext(path, read_untrusted_graph(path), _arrays(hints.data), _arrays(hints.constants), hints.layout)


def _arrays(path: Path | None) -> NamedArrays:
    """Return the arrays of an `.npz` file; of a run's `golden.npz`, the real samples and their reference outputs."""
    if path is None:
        return {}
    try:
        with np.load(path, allow_pickle=False) as file:
            if not hasattr(file, "files"):
                raise ConfigError(
                    f"{path}: expected named arrays, got one; write it with numpy.savez(file, name=array)"
                )
            plain = {key: file[key] for key in file.files if not key.startswith(("trace/", "answers/"))}
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise ConfigError(f"{path}: not a readable .npz file ({error})") from error
    return {key.removeprefix("inputs/real/").removeprefix("outputs/real/"): array for key, array in plain.items()}
