"""onnx-simplifier: constant folding and shape-driven simplification."""

import sys
from pathlib import Path
from typing import Literal

from tasks.frozen import Frozen
from tasks.optimize.rewrite import rewrite


class OnnxSim(Frozen):
    """`onnxsim.simplify`. Its own comparison on random data is not relied on: the numerics gate follows."""

    kind: Literal["onnxsim"] = "onnxsim"

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.kind

    def apply(self, source: Path, target: Path) -> None:
        """Write the simplified graph."""
        # It tries PyTorch for a quantiser that is not used here; in a fresh process that alone takes seconds.
        absent = "torch" not in sys.modules
        if absent:
            sys.modules["torch"] = None  # type: ignore[assignment]
        try:
            import onnxsim
        finally:
            if absent:
                del sys.modules["torch"]
        rewrite(lambda model: onnxsim.simplify(model)[0], source, target)
