"""onnx-simplifier: constant folding and shape-driven simplification."""

from pathlib import Path
from typing import Literal

import onnx

from tasks.frozen import Frozen
from tasks.model_file import write_model


class OnnxSim(Frozen):
    """`onnxsim.simplify`. Its own comparison on random data is not relied on: the numerics gate follows."""

    kind: Literal["onnxsim"] = "onnxsim"

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.kind

    def apply(self, source: Path, target: Path) -> None:
        """Write the simplified graph."""
        import onnxsim

        simplified, _ = onnxsim.simplify(onnx.load(source))
        write_model(simplified, target)
