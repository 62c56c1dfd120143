"""The base class of engines. Each module of this folder imports only numpy and one runtime.

A module has `load_engine(model, threads, options)`, which returns an `Engine`, and, where more than packages may be
missing, `unavailable_reason(options)`; the options are the target's.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.runtime.timing import CLOCKS, time_calls

ONE_RELU = (
    b'\x08\x08:6\n\x0f\n\x01x\x12\x01y\x1a\x01r"\x04Relu\x12\x01pZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\r"
)
"""A model with one Relu: the onnx package wrote it, which a worker does not have."""


@dataclass(frozen=True)
class TensorInfo:
    """An input or output as ONNX Runtime describes it, with a type such as `tensor(float)`."""

    name: str
    type: str
    shape: Sequence[int | str]


class Engine(ABC):
    """A loaded model, with the interface of an ONNX Runtime session that `batched_inference` needs."""

    runtime: str
    on_processor: bool = True
    """Whether the threads of this process compute, and no other process or device."""
    inputs: Sequence[TensorInfo]
    """Known after loading and `set_samples`."""
    outputs: Sequence[TensorInfo]

    def set_samples(self, samples: NamedArrays) -> None:  # noqa: B027 - most engines know their inputs
        """Receive the samples before the first call: a framework's file may not describe its inputs."""

    def get_inputs(self) -> Sequence[TensorInfo]:
        """Return the required inputs."""
        return self.inputs

    def get_outputs(self) -> Sequence[TensorInfo]:
        """Return the outputs in order."""
        return self.outputs

    @abstractmethod
    def bind(self, feed: NamedArrays) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
        """Pass the inputs to the runtime; return the call to time, and the conversion of its result to arrays."""

    @abstractmethod
    def placement(self, feed: NamedArrays) -> dict[str, Any]:
        """Return `asked`, the device or provider, and `nodes`, a list of [name, operator] by device.

        `kernels`, where the runtime reports them, counts the multiplying kernels by the type that they compute in.
        """

    def run(self, names: Sequence[str], feed: NamedArrays) -> list[Array]:
        """Return the named outputs of one call."""
        call, fetch = self.bind(feed)
        values = dict(zip((port.name for port in self.get_outputs()), fetch(call()), strict=True))
        return [values[name] for name in names]

    def measure(
        self, feed: NamedArrays, at_least_ms: float = 0, calls: int | None = None, clock: str = "wall"
    ) -> tuple[list[float], list[Array]]:
        """Call for the given time, or so many times; return the durations in milliseconds, and the last outputs.

        They are times of the wall clock, or of all processors (`clock` is `processor`).
        """
        call, fetch = self.bind(feed)
        samples_ms, result = time_calls(call, at_least_ms, least=calls or 1, most=calls, clock=CLOCKS[clock])
        return samples_ms, fetch(result)

    def profile(self, feed: NamedArrays, calls: int, folder: str) -> str:
        """Write a trace of some calls into the folder; return the file."""
        raise ValueError(f"{self.runtime} writes no trace here")

    def children_rss_bytes(self) -> int:
        """Return the resident memory of processes that the engine started."""
        return 0
