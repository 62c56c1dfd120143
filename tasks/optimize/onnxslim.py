"""OnnxSlim: pattern-based simplification."""

from pathlib import Path
from typing import Literal

from gauntlet.core.frozen import Frozen
from tasks.optimize.in_memory_pass import apply_in_memory


class OnnxSlim(Frozen):
    """`onnxslim.slim`."""

    kind: Literal["onnxslim"] = "onnxslim"

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.kind

    def apply(self, model: Path, destination: Path) -> None:
        """Write the slimmed model."""
        import onnxslim

        apply_in_memory(onnxslim.slim, model, destination)
