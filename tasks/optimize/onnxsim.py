"""onnx-simplifier: constant folding and shape-driven simplification."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from gauntlet.core.frozen import Frozen
from tasks.optimize.in_memory_pass import apply_in_memory


@contextmanager
def _without(package: str) -> Iterator[None]:
    """Make imports of a package fail inside the block, unless it is already loaded.

    This affects all threads of the process, so keep the block to one import.
    """
    absent = package not in sys.modules
    if absent:
        sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if absent:
            del sys.modules[package]


class OnnxSim(Frozen):
    """`onnxsim.simplify`, without its own comparison on random data: each pass is verified here."""

    kind: Literal["onnxsim"] = "onnxsim"

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.kind

    def apply(self, model: Path, destination: Path) -> None:
        """Write the simplified model."""
        with _without("torch"):  # onnxsim imports it for a quantizer that is not used here, which takes seconds
            import onnxsim
        apply_in_memory(lambda proto: onnxsim.simplify(proto)[0], model, destination)
