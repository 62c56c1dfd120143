"""The ONNX project's optimiser: its default fusion and elimination passes."""

from pathlib import Path
from typing import Literal

import onnx

from tasks.frozen import Frozen
from tasks.model_file import write_model


class OnnxOptimizer(Frozen):
    """`onnxoptimizer.optimize` with its default passes, until nothing changes."""

    kind: Literal["onnxoptimizer"] = "onnxoptimizer"

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.kind

    def apply(self, source: Path, target: Path) -> None:
        """Write the optimised graph."""
        import onnxoptimizer

        passes = onnxoptimizer.get_fuse_and_elimination_passes()
        write_model(onnxoptimizer.optimize(onnx.load(source), passes, fixed_point=True), target)
