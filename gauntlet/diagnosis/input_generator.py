"""Generate inputs from a graph alone: the caller's samples where they fit, random ones otherwise."""

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.onnx_model.graph import Dim, format_type, required_inputs, tensor_shape

MAX_FEED_BYTES = 256_000_000
SIZES = (32, 8, 64, 1, 224)
"""Sizes to try for dynamic axes other than the batch: a graph does not say which sizes are valid."""


@dataclass(frozen=True)
class InputGenerator:
    """Generates the inputs of one call. Sample i is the same at every batch size."""

    inputs: Sequence[onnx.ValueInfoProto]
    data: NamedArrays = field(default_factory=dict)

    @classmethod
    def from_graph(cls, graph: onnx.GraphProto, data: NamedArrays) -> "InputGenerator":
        """Return a generator for a graph's required inputs."""
        return cls(required_inputs(graph), data)

    @property
    def batch_names(self) -> set[str]:
        """The names of dynamic first axes."""
        firsts = [(tensor_shape(i) or (None,))[0] for i in self.inputs]
        return {axis for axis in firsts if isinstance(axis, str)}

    @property
    def takes_batches(self) -> bool:
        """Whether any input's first axis is dynamic."""
        return any(shape and not isinstance(shape[0], int) for shape in map(tensor_shape, self.inputs))

    def fitting_sizes(self) -> Sequence[int]:
        """Return the sizes to try; a single one where no axis depends on it."""
        free = [
            a for i in self.inputs if not self._fits(i) for a in (tensor_shape(i) or ())[1:] if not self._is_batch(a, 1)
        ]
        return SIZES if any(not isinstance(a, int) for a in free) else SIZES[:1]

    def feed(self, batch: int, size: int) -> NamedArrays:
        """Return one array per input: `batch` samples, and `size` for the other dynamic axes.

        Raises:
            StageError: when an input is not a tensor, or would exceed `MAX_FEED_BYTES`.
        """
        return {i.name: self._array(i, batch, size) for i in self.inputs}

    def _is_batch(self, axis: Dim, axis_index: int) -> bool:
        return (axis_index == 0 and not isinstance(axis, int)) or (isinstance(axis, str) and axis in self.batch_names)

    def _fits(self, value: onnx.ValueInfoProto) -> bool:
        given, shape = self.data.get(value.name), tensor_shape(value)
        if given is None or shape is None or given.ndim != len(shape) or not given.size:
            return False
        return all(not isinstance(axis, int) or axis == n for axis, n in list(zip(shape, given.shape, strict=True))[1:])

    def _array(self, value: onnx.ValueInfoProto, batch: int, size: int) -> npt.NDArray[np.generic]:
        if not value.type.HasField("tensor_type"):
            raise StageError(f"input '{value.name}' has the type {format_type(value)}; expected a tensor")
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        declared = tensor_shape(value) or ()
        shape = tuple(
            batch if self._is_batch(a, axis_index) else a if isinstance(a, int) else size
            for axis_index, a in enumerate(declared)
        )
        if math.prod(shape) * dtype.itemsize > MAX_FEED_BYTES:
            bytes_ = math.prod(shape) * dtype.itemsize
            raise StageError(
                f"input '{value.name}' {format_type(value)} needs {bytes_ / 1e9:.3g} GB per call "
                f"(limit: {MAX_FEED_BYTES / 1e9:.3g} GB)"
            )
        if self._fits(value):
            given = self.data[value.name]
            return given[np.arange(shape[0]) % len(given)].astype(dtype) if shape else given.astype(dtype)
        if dtype.kind == "f":
            rng = np.random.default_rng(zlib.crc32(value.name.encode()))
            return rng.standard_normal(shape).astype(dtype)
        # Zero is a valid index into any table.
        return np.full(shape, "a", dtype=object) if dtype.kind == "O" else np.zeros(shape, dtype)


def attempts(generator: InputGenerator, batch: int) -> Iterator[tuple[int, NamedArrays]]:
    """Yield the feeds to try at one batch size, each with the size of its other dynamic axes."""
    for size in generator.fitting_sizes():
        yield size, generator.feed(batch, size)
