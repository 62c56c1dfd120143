"""OnnxSlim: pattern-based simplification."""

from pathlib import Path
from typing import Literal

from tasks.frozen import Frozen
from tasks.optimize.rewrite import rewrite


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

        rewrite(onnxslim.slim, source, target)
