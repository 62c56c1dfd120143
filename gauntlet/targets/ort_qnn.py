"""ONNX Runtime on Qualcomm's processors."""

from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.targets.base import Precision
from gauntlet.targets.ort import OrtTarget


class OrtQnn(OrtTarget):
    """The QNN provider: the Hexagon tensor processor runs quantized models, or computes floats in float16."""

    kind: Literal["ort-qnn"] = "ort-qnn"
    backend: Literal["htp", "cpu", "gpu"] = Field("htp", description="part of the chip")
    performance: Literal["default", "burst", "sustained_high_performance"] = Field(
        "burst", description="htp_performance_mode"
    )
    provider: ClassVar[str] = "QNNExecutionProvider"
    named: ClassVar[tuple[str, ...]] = ("backend",)
    named_if_changed: ClassVar[dict[str, str]] = {"performance": "{}"}

    @property
    def declared_precision(self) -> Precision:
        """Float16, except on the processor."""
        return "f32" if self.backend == "cpu" else "f16"

    def provider_options(self) -> dict[str, str]:
        """Return the part of the chip and its mode."""
        mode = {"htp_performance_mode": self.performance} if self.backend == "htp" else {}
        return {"backend_type": self.backend, **mode}
