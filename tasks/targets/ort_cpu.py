"""ONNX Runtime's own kernels on the processor."""

from typing import ClassVar, Literal

from pydantic import Field

from tasks.frozen import JsonObject
from tasks.runtime.session import Level
from tasks.targets.ort import OrtTarget


class OrtCpu(OrtTarget):
    """The CPU provider."""

    kind: Literal["ort-cpu"] = "ort-cpu"
    level: Level = Field("all", description="graph optimisation")
    spinning: bool = Field(True, description="threads wait for work awake, which is faster alone and slower in company")
    provider: ClassVar[str] = "CPUExecutionProvider"

    def variant(self) -> tuple[str, ...]:
        """Return what differs from the runtime's defaults."""
        return (*(() if self.level == "all" else (self.level,)), *(() if self.spinning else ("nospin",)))

    def settings(self) -> dict[str, str]:
        """Return how threads wait."""
        return {} if self.spinning else {"session.intra_op.allow_spinning": "0"}

    def engine_options(self) -> JsonObject:
        """Return the level, too."""
        return super().engine_options() | {"level": self.level}
