"""ONNX Runtime with NVIDIA's TensorRT."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.core.frozen import JsonObject
from gauntlet.core.workspace import gauntlet_home
from gauntlet.targets.base import Precision
from gauntlet.targets.ort import MODEL, OrtTarget


class OrtTensorRt(OrtTarget):
    """The TensorRT provider; engines, which take minutes to build, are kept.

    TensorRT computes float32 in TF32 unless NVIDIA's libraries are told not to by their environment.
    """

    kind: Literal["ort-tensorrt"] = "ort-tensorrt"
    precision: Precision = Field("f32", description="int8 needs a model with QuantizeLinear and DequantizeLinear")
    engine_cache: Path | None = Field(None, description="folder of built engines; by default under the gauntlet's home")
    provider: ClassVar[str] = "TensorrtExecutionProvider"
    device: ClassVar[str | None] = "cuda"

    @property
    def declared_precision(self) -> Precision:
        """The precision that is allowed."""
        return self.precision

    def name_suffix(self) -> tuple[str, ...]:
        """Return the precision."""
        return (self.precision,)

    def provider_options(self) -> dict[str, str]:
        """Return the precision, and where engines are kept: TensorRT tells them apart by names, not by weights."""
        cache = (self.engine_cache or gauntlet_home() / "tensorrt").resolve() / f"{MODEL}-{self.precision}"
        on = {"trt_engine_cache_enable": "1", "trt_timing_cache_enable": "1"}
        on |= {"trt_engine_cache_path": str(cache), "trt_timing_cache_path": str(cache)}
        on |= {"trt_fp16_enable": "1"} if self.precision == "f16" else {}
        on |= {"trt_bf16_enable": "1"} if self.precision == "bf16" else {}
        return on | ({"trt_int8_enable": "1"} if self.precision == "int8" else {})

    def engine_options(self) -> JsonObject:
        """Return also what forbids TF32, and CUDA for nodes that TensorRT does not take."""
        forbidden: JsonObject = {} if self.precision == "tf32" else {"environment": {"NVIDIA_TF32_OVERRIDE": "0"}}
        return super().engine_options() | forbidden | {"others": ["CUDAExecutionProvider"]}
