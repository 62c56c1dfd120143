"""OnnxSlim: pattern-based simplification."""

from pathlib import Path
from typing import Literal

import onnx

from tasks.frozen import Frozen
from tasks.model_file import write_model


class OnnxSlim(Frozen):
    """`onnxslim.slim`."""

    kind: Literal["onnxslim"] = "onnxslim"

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.kind

    def apply(self, source: Path, target: Path) -> None:
        """Write the slimmed graph."""
        import onnxslim

        write_model(onnxslim.slim(onnx.load(source)), target)
