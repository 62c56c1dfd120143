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
    known_options: ClassVar[tuple[JsonObject, ...]] = ({}, {"tf32": True})
    provider: ClassVar[str] = "CUDAExecutionProvider"
    device: ClassVar[str | None] = "cuda"
    named_if_changed: ClassVar[dict[str, str]] = {"tf32": "tf32"}

    @property
    def declared_precision(self) -> Precision:
        """TF32 where it is allowed."""
        return "tf32" if self.tf32 else "f32"

    def provider_options(self) -> dict[str, str]:
        """Return whether TF32 is allowed, and the search for the fastest convolution."""
        return {"use_tf32": str(int(self.tf32)), "cudnn_conv_algo_search": "EXHAUSTIVE"}
