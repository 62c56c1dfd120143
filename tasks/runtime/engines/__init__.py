"""What a worker needs of a runtime; one module each, which imports numpy and that runtime and no more.

A module has `unavailable(options)` and a class `Loaded` of this kind, made from a model, a number of threads, and the
options that its target sends.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
Feed = dict[str, Array]

ONE_RELU = (
    b'\x08\x08:6\n\x0f\n\x01x\x12\x01y\x1a\x01r"\x04Relu\x12\x01pZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\r"
)
"""The smallest model there is, written by the onnx package, which a worker does not have."""


@dataclass(frozen=True)
class Port:
    """An input or output, as ONNX Runtime describes one: `tensor(float)`; a number or a name an axis."""

    name: str
    type: str
    shape: Sequence[int | str]


def type_name(dtype: str) -> str:
    """Return ONNX Runtime's word for a tensor of a type that numpy calls so; text of any length is `string`."""
    words = {"float32": "float", "float64": "double", "object": "string"}
    return f"tensor({'string' if dtype.startswith('str') else words.get(dtype, dtype)})"


class Engine(ABC):
    """A loaded model. It looks like a session of ONNX Runtime to `tasks.runtime.calls`."""

    runtime: str

    def given(self, samples: Feed) -> None:  # noqa: B027 - most engines know their inputs
        """Be shown the samples before anything is asked: a framework's own file may not say what its inputs are."""

    @abstractmethod
    def get_inputs(self) -> Sequence[Port]:
        """Return the inputs that a call must give."""

    @abstractmethod
    def get_outputs(self) -> Sequence[Port]:
        """Return the outputs, in their order."""

    @abstractmethod
    def bound(self, feed: Feed) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
        """Put the inputs where the runtime wants them; return what is timed, and what makes arrays of its result."""

    @abstractmethod
    def placement(self, feed: Feed) -> dict[str, Any]:
        """Return what runs where: `asked`, the device or provider, and `nodes`, by device a list of [name, operator].

        `kernels`, where the runtime tells it, counts the kernels that multiply by the type that they compute in.
        """

    def run(self, names: Sequence[str], feed: Feed) -> list[Array]:
        """Return the named outputs of one call."""
        call, fetch = self.bound(feed)
        values = dict(zip((port.name for port in self.get_outputs()), fetch(call()), strict=True))
        return [values[name] for name in names]

    def measure(self, feed: Feed, at_least_ms: float) -> tuple[list[float], list[Array]]:
        """Call at least once and for the given time; return every duration in milliseconds, and the last answer."""
        call, fetch = self.bound(feed)
        samples: list[int] = []
        result = None
        end = perf_counter_ns() + int(at_least_ms * 1e6)
        while True:
            result = None  # the last answer's memory is given back outside the time
            start = perf_counter_ns()
            result = call()
            now = perf_counter_ns()
            samples.append(now - start)
            if now >= end:
                break
        return [ns / 1e6 for ns in samples], fetch(result)

    def profile(self, feed: Feed, calls: int, folder: str) -> str:
        """Write a trace of some calls into the folder; return the file."""
        raise ValueError(f"{self.runtime} writes no trace here")

    def children_rss_bytes(self) -> int:
        """Return the resident memory of processes that the engine started."""
        return 0
