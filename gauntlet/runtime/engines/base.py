"""What a worker needs of a runtime; one module each, which imports numpy and that runtime and no more.

A module has `load_engine(model, threads, options)`, which returns its `Engine`, and where more can be missing than
packages `unavailable_reason(options)`; the options are those of the target.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.runtime.timing import time_calls

ONE_RELU = (
    b'\x08\x08:6\n\x0f\n\x01x\x12\x01y\x1a\x01r"\x04Relu\x12\x01pZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\r"
)
"""The smallest model there is, written by the onnx package, which a worker does not have."""


@dataclass(frozen=True)
class TensorInfo:
    """An input or output, as ONNX Runtime describes one: `tensor(float)`; a number or a name an axis."""

    name: str
    type: str
    shape: Sequence[int | str]


def type_name(dtype: str) -> str:
    """Return ONNX Runtime's word for a tensor of a type that numpy calls so; text of any length is `string`."""
    words = {"float32": "float", "float64": "double", "object": "string"}
    return f"tensor({'string' if dtype.startswith('str') else words.get(dtype, dtype)})"


class Engine(ABC):
    """A loaded model. It looks like a session of ONNX Runtime to `gauntlet.runtime.batched_inference`."""

    runtime: str
    inputs: Sequence[TensorInfo]
    """Known once it is loaded and has been `given` samples."""
    outputs: Sequence[TensorInfo]

    def set_samples(self, samples: NamedArrays) -> None:  # noqa: B027 - most engines know their inputs
        """Be shown the samples before anything is asked: a framework's own file may not say what its inputs are."""

    def get_inputs(self) -> Sequence[TensorInfo]:
        """Return the inputs that a call must give."""
        return self.inputs

    def get_outputs(self) -> Sequence[TensorInfo]:
        """Return the outputs, in their order."""
        return self.outputs

    @abstractmethod
    def bind(self, feed: NamedArrays) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
        """Put the inputs where the runtime wants them; return what is timed, and what makes arrays of its result."""

    @abstractmethod
    def placement(self, feed: NamedArrays) -> dict[str, Any]:
        """Return what runs where: `asked`, the device or provider, and `nodes`, by device a list of [name, operator].

        `kernels`, where the runtime tells it, counts the kernels that multiply by the type that they compute in.
        """

    def run(self, names: Sequence[str], feed: NamedArrays) -> list[Array]:
        """Return the named outputs of one call."""
        call, fetch = self.bind(feed)
        values = dict(zip((port.name for port in self.get_outputs()), fetch(call()), strict=True))
        return [values[name] for name in names]

    def measure(self, feed: NamedArrays, at_least_ms: float) -> tuple[list[float], list[Array]]:
        """Call at least once and for the given time; return every duration in milliseconds, and the last answer."""
        call, fetch = self.bind(feed)
        samples_ms, result = time_calls(call, at_least_ms)
        return samples_ms, fetch(result)

    def profile(self, feed: NamedArrays, calls: int, folder: str) -> str:
        """Write a trace of some calls into the folder; return the file."""
        raise ValueError(f"{self.runtime} writes no trace here")

    def children_rss_bytes(self) -> int:
        """Return the resident memory of processes that the engine started."""
        return 0
