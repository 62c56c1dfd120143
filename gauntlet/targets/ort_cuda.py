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
    gpu_mem_limit: int | None = Field(None, gt=0, description="bytes of the provider's memory arena; default: no limit")
    arena_extend_strategy: Literal["kNextPowerOfTwo", "kSameAsRequested"] = Field(
        "kNextPowerOfTwo", description="by how much the arena grows"
    )
    cudnn_conv_algo_search: Literal["EXHAUSTIVE", "HEURISTIC", "DEFAULT"] = Field(
        "EXHAUSTIVE", description="how cuDNN's algorithm for a convolution is chosen; EXHAUSTIVE times them all once"
    )
    do_copy_in_default_stream: bool = Field(True, description="copy in the stream that computes")
    known_options: ClassVar[tuple[JsonObject, ...]] = ({}, {"tf32": True})
    provider: ClassVar[str] = "CUDAExecutionProvider"
    device: ClassVar[str | None] = "cuda"
    named_if_changed: ClassVar[dict[str, str]] = {"tf32": "tf32", "device_id": "gpu{}", "gpu_mem_limit": "{}bytes"}
    named_if_changed |= {"arena_extend_strategy": "{}", "cudnn_conv_algo_search": "{}"}
    named_if_changed |= {"do_copy_in_default_stream": "copystream"}

    @property
    def declared_precision(self) -> Precision:
        """TF32 where it is allowed."""
        return "tf32" if self.tf32 else "f32"

    def provider_options(self) -> dict[str, str]:
        """Return the options by their names in ONNX Runtime."""
        limit = {} if self.gpu_mem_limit is None else {"gpu_mem_limit": str(self.gpu_mem_limit)}
        return limit | {
            "use_tf32": str(int(self.tf32)),
            "device_id": str(self.device_id),
            "arena_extend_strategy": self.arena_extend_strategy,
            "cudnn_conv_algo_search": self.cudnn_conv_algo_search,
            "do_copy_in_default_stream": str(int(self.do_copy_in_default_stream)),
        }
