"""ONNX Runtime's own graph optimiser, saved to a file."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from tasks.frozen import Frozen
from tasks.runtime.session import open_session


class OrtGraph(Frozen):
    """ONNX Runtime's optimiser at one level. `all` chooses layouts for this processor."""

    kind: Literal["ort"] = "ort"
    level: Literal["basic", "extended", "all"] = Field("extended", description="graph optimisation level")

    @property
    def name(self) -> str:
        """The candidate's name."""
        return f"ort-{self.level}"

    def apply(self, source: Path, target: Path) -> None:
        """Write the optimised graph."""
        open_session(source, level=self.level, save_to=target)
