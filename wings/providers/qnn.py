"""ONNX Runtime on Qualcomm's processors."""

from typing import ClassVar, Literal

from gauntlet.targets.base import Precision
from gauntlet.targets.ort import OrtTarget


class OrtQnn(OrtTarget):
    """The QNN provider: the Hexagon tensor processor runs quantized models, or computes floats in float16."""

    kind: Literal["ort-qnn"] = "ort-qnn"
    precision: ClassVar[Precision] = "f16"
    provider: ClassVar[str] = "QNNExecutionProvider"

    def provider_options(self) -> dict[str, str]:
        """Return the part of the chip and its mode."""
        return {"backend_type": "htp", "htp_performance_mode": "burst"}
