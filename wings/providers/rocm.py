"""ONNX Runtime on AMD's GPUs."""

from typing import ClassVar, Literal

from gauntlet.targets.ort import OrtTarget


class OrtRocm(OrtTarget):
    """The MIGraphX provider of ROCm, which replaced the ROCm provider in ONNX Runtime 1.23."""

    kind: Literal["ort-rocm"] = "ort-rocm"
    precision: Literal["f32", "f16"] = "f32"
    provider: ClassVar[str] = "MIGraphXExecutionProvider"
    named: ClassVar[tuple[str, ...]] = ("precision",)

    def provider_options(self) -> dict[str, str]:
        """Return the precision."""
        return {"migraphx_fp16_enable": str(int(self.precision == "f16"))}
