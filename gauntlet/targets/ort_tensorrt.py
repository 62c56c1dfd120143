"""ONNX Runtime with NVIDIA's TensorRT."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.core.frozen import JsonObject
from gauntlet.core.workspace import gauntlet_home
from gauntlet.targets.base import Precision
from gauntlet.targets.ort import MODEL, OrtTarget

ENABLE = {"f16": "trt_fp16_enable", "bf16": "trt_bf16_enable", "int8": "trt_int8_enable"}


class OrtTensorRt(OrtTarget):
    """The TensorRT provider; built engines are cached, since building takes minutes.

    TensorRT computes float32 in TF32 unless an environment variable of NVIDIA's libraries forbids it.
    """

    kind: Literal["ort-tensorrt"] = "ort-tensorrt"
    precision: Precision = Field("f32", description="int8 needs a model with QuantizeLinear and DequantizeLinear")
    engine_cache: Path | None = Field(None, description="folder of built engines; default: in the gauntlet's home")
    known_options: ClassVar[tuple[JsonObject, ...]] = tuple({"precision": name} for name in ("f32", "f16", "int8"))
    provider: ClassVar[str] = "TensorrtExecutionProvider"
    device: ClassVar[str | None] = "cuda"
    named: ClassVar[tuple[str, ...]] = ("precision",)

    def provider_options(self) -> dict[str, str]:
        """Return the precision and the cache folder, one per model: TensorRT's cache ignores the weights."""
        cache = (self.engine_cache or gauntlet_home() / "tensorrt").resolve() / f"{MODEL}-{self.precision}"
        options = {"trt_engine_cache_enable": "1", "trt_timing_cache_enable": "1"}
        options |= {"trt_engine_cache_path": str(cache), "trt_timing_cache_path": str(cache)}
        return options | ({ENABLE[self.precision]: "1"} if self.precision in ENABLE else {})

    def engine_options(self) -> JsonObject:
        """Return also whether TF32 is forbidden, and CUDA for nodes that TensorRT does not support."""
        forbidden: JsonObject = {} if self.precision == "tf32" else {"environment": {"NVIDIA_TF32_OVERRIDE": "0"}}
        return super().engine_options() | forbidden | {"others": ["CUDAExecutionProvider"]}
