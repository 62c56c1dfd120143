"""ONNX Runtime on AMD's GPUs."""

from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.targets.base import Precision
from gauntlet.targets.ort import OrtTarget


class OrtRocm(OrtTarget):
    """The MIGraphX provider of ROCm; ONNX Runtime 1.23 removed the one that was called ROCm."""

    kind: Literal["ort-rocm"] = "ort-rocm"
    precision: Literal["f32", "f16"] = "f32"
    device_id: int = Field(0, ge=0, description="which GPU")
    provider: ClassVar[str] = "MIGraphXExecutionProvider"

    @property
    def declared_precision(self) -> Precision:
        """The precision that is asked for."""
        return self.precision

    def name_suffix(self) -> tuple[str, ...]:
        """Return the precision, and the GPU where it is not the first."""
        return (self.precision, *((str(self.device_id),) if self.device_id else ()))

    def provider_options(self) -> dict[str, str]:
        """Return GPU and precision."""
        return {"device_id": str(self.device_id), "migraphx_fp16_enable": str(int(self.precision == "f16"))}
