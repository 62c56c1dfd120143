"""ONNX Runtime on an NVIDIA GPU."""

from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.core.frozen import JsonObject
from gauntlet.targets.base import Precision
from gauntlet.targets.ort import OrtTarget


class OrtCuda(OrtTarget):
    """The CUDA provider, with inputs and outputs in the GPU's memory.

    The provider computes float32 convolutions and products in TF32 (10 bits of mantissa) by default; here, TF32 is
    always set explicitly.
    """

    kind: Literal["ort-cuda"] = "ort-cuda"
    tf32: bool = Field(False, description="multiply float32 with 10 bits of mantissa; part of the name")
    device_id: int = Field(0, ge=0, description="index of the GPU")
    properties: dict[str, str] = Field(default_factory=dict, description="further options of the provider, by name")
    known_options: ClassVar[tuple[JsonObject, ...]] = ({}, {"tf32": True})
    provider: ClassVar[str] = "CUDAExecutionProvider"
    device: ClassVar[str | None] = "cuda"
    named_if_changed: ClassVar[dict[str, str]] = {"tf32": "tf32", "device_id": "gpu{}"}

    @property
    def declared_precision(self) -> Precision:
        """TF32 where it is allowed."""
        return "tf32" if self.tf32 else "f32"

    def name_suffix(self) -> tuple[str, ...]:
        """Return TF32, the GPU and the properties."""
        return (*super().name_suffix(), *(f"{name}={value}" for name, value in sorted(self.properties.items())))

    def provider_options(self) -> dict[str, str]:
        """Return the options by their names in ONNX Runtime."""
        return {**self.properties, "use_tf32": str(int(self.tf32)), "device_id": str(self.device_id)}
