"""ONNX Runtime on AMD's GPUs."""

from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.targets.ort import OrtTarget


class OrtRocm(OrtTarget):
    """The MIGraphX provider of ROCm, which replaced the ROCm provider in ONNX Runtime 1.23."""

    kind: Literal["ort-rocm"] = "ort-rocm"
    precision: Literal["f32", "f16"] = "f32"
    device_id: int = Field(0, ge=0, description="index of the GPU")
    provider: ClassVar[str] = "MIGraphXExecutionProvider"
    named: ClassVar[tuple[str, ...]] = ("precision",)
    named_if_changed: ClassVar[dict[str, str]] = {"device_id": "{}"}

    def provider_options(self) -> dict[str, str]:
        """Return GPU and precision."""
        return {"device_id": str(self.device_id), "migraphx_fp16_enable": str(int(self.precision == "f16"))}
