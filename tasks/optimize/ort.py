"""ONNX Runtime's graph optimizer, saved to a file."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from gauntlet.runtime.session import open_session
from tasks.optimize.base import Pass


class OrtGraph(Pass):
    """ONNX Runtime's graph optimizer at one level. `all` chooses layouts for this processor."""

    kind: Literal["ort"] = "ort"
    level: Literal["basic", "extended", "all"] = Field("extended", description="graph optimization level")

    @property
    def name(self) -> str:
        """The candidate's name."""
        return f"ort-{self.level}"

    def apply(self, model: Path, destination: Path) -> None:
        """Write the optimized model."""
        open_session(model, level=self.level, save_to=destination)
