"""Inputs for a model that one knows only the graph of: the caller's samples where they fit, random ones elsewhere."""

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from tasks.diagnose.clues import Arrays
from tasks.errors import StageError
from tasks.runtime.graph import Axis, axes, required_inputs, text_of_type

MAX_FEED_BYTES = 256_000_000
SIZES = (32, 8, 64, 1, 224)
"""What is tried for dynamic axes that are no batch: nothing in a graph says how long they may be."""


@dataclass(frozen=True)
class Feeder:
    """Makes the inputs of one call. Sample i is the same in every batch."""

    inputs: Sequence[onnx.ValueInfoProto]
    data: Arrays = field(default_factory=dict)

    @classmethod
    def of(cls, graph: onnx.GraphProto, data: Arrays) -> "Feeder":
        """Return the feeder of a graph's required inputs."""
        return cls(required_inputs(graph), data)

    @property
    def batch_names(self) -> set[str]:
        """The names of first axes that are dynamic."""
        firsts = [(axes(i) or (None,))[0] for i in self.inputs]
        return {axis for axis in firsts if isinstance(axis, str)}

    @property
    def takes_batches(self) -> bool:
        """Whether any input's first axis is dynamic."""
        return any(shape and not isinstance(shape[0], int) for shape in map(axes, self.inputs))

    def fitting_sizes(self) -> Sequence[int]:
        """Return the sizes to try: one where no axis needs any."""
        free = [a for i in self.inputs if not self._fits(i) for a in (axes(i) or ())[1:] if not self._is_batch(a, 1)]
        return SIZES if any(not isinstance(a, int) for a in free) else SIZES[:1]

    def feed(self, batch: int, size: int) -> Arrays:
        """Return one array an input: `batch` samples, and `size` for dynamic axes that are no batch.

        Raises:
            StageError: when an input is no tensor, or would be too large.
        """
        return {i.name: self._array(i, batch, size) for i in self.inputs}

    def _is_batch(self, axis: Axis, place: int) -> bool:
        return (place == 0 and not isinstance(axis, int)) or (isinstance(axis, str) and axis in self.batch_names)

    def _fits(self, value: onnx.ValueInfoProto) -> bool:
        given, shape = self.data.get(value.name), axes(value)
        if given is None or shape is None or given.ndim != len(shape) or not given.size:
            return False
        return all(not isinstance(axis, int) or axis == n for axis, n in list(zip(shape, given.shape, strict=True))[1:])

    def _array(self, value: onnx.ValueInfoProto, batch: int, size: int) -> npt.NDArray[np.generic]:
        if not value.type.HasField("tensor_type"):
            raise StageError(f"input '{value.name}' is a {text_of_type(value)}, not a tensor")
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        declared = axes(value) or ()
        shape = tuple(
            batch if self._is_batch(a, place) else a if isinstance(a, int) else size for place, a in enumerate(declared)
        )
        if math.prod(shape) * dtype.itemsize > MAX_FEED_BYTES:
            bytes_ = math.prod(shape) * dtype.itemsize
            raise StageError(f"one call needs {bytes_ / 1e9:.3g} GB for the input '{value.name}' {text_of_type(value)}")
        if self._fits(value):
            given = self.data[value.name]
            return given[np.arange(shape[0]) % len(given)].astype(dtype) if shape else given.astype(dtype)
        if dtype.kind == "f":
            rng = np.random.default_rng(zlib.crc32(value.name.encode()))
            return rng.standard_normal(shape).astype(dtype)
        # Zero is an index into any table, and a word like any other.
        return np.full(shape, "a", dtype=object) if dtype.kind == "O" else np.zeros(shape, dtype)


def attempts(feeder: Feeder, batch: int) -> Iterator[tuple[int, Arrays]]:
    """Yield the calls worth trying at one batch size, each with the size of its other dynamic axes."""
    for size in feeder.fitting_sizes():
        yield size, feeder.feed(batch, size)
