"""ONNX Runtime on Apple's CoreML."""

from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.targets.base import Precision
from gauntlet.targets.ort import OrtTarget


class OrtCoreMl(OrtTarget):
    """The CoreML provider: macOS and iOS only. Its neural engine and GPU compute in float16."""

    kind: Literal["ort-coreml"] = "ort-coreml"
    units: Literal["ALL", "CPUOnly", "CPUAndGPU", "CPUAndNeuralEngine"] = Field("ALL", description="MLComputeUnits")
    format: Literal["MLProgram", "NeuralNetwork"] = Field("MLProgram", description="ModelFormat")
    provider: ClassVar[str] = "CoreMLExecutionProvider"
    named_if_changed: ClassVar[dict[str, str]] = {"units": "{}", "format": "{}"}

    @property
    def declared_precision(self) -> Precision:
        """Float16, except on the processor."""
        return "f32" if self.units == "CPUOnly" else "f16"

    def provider_options(self) -> dict[str, str]:
        """Return units and format."""
        return {"MLComputeUnits": self.units, "ModelFormat": self.format}
