"""onnx-simplifier: constant folding and shape-driven simplification."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import onnx

from tasks.optimize.in_memory_pass import InMemoryPass


@contextmanager
def _without(package: str) -> Iterator[None]:
    """Make imports of a package fail inside the block, in all threads, unless it is already loaded."""
    absent = package not in sys.modules
    if absent:
        sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if absent:
            del sys.modules[package]


class OnnxSim(InMemoryPass):
    """`onnxsim.simplify`, without its own comparison on random data: each pass is verified here."""

    kind: Literal["onnxsim"] = "onnxsim"

    def transform(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """Return the simplified model."""
        with _without("torch"):  # onnxsim imports it for a quantizer that is not used here, which takes seconds
            import onnxsim
        return onnxsim.simplify(proto)[0]  # type: ignore[no-any-return]
