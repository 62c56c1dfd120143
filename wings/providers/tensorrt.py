"""ONNX Runtime with NVIDIA's TensorRT."""

import hashlib
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from gauntlet.core.frozen import Frozen, JsonObject
from gauntlet.core.workspace import gauntlet_home
from gauntlet.targets.base import Precision
from gauntlet.targets.ort import MODEL, OrtTarget

ENABLE = {"f16": "trt_fp16_enable", "bf16": "trt_bf16_enable", "int8": "trt_int8_enable"}


class ShapeProfile(Frozen):
    """The shapes of an input that an engine is built for, the batch included; it is fastest at `opt`."""

    min: tuple[int, ...] = Field(min_length=1)
    opt: tuple[int, ...] = Field(min_length=1)
    max: tuple[int, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        ranks = {len(self.min), len(self.opt), len(self.max)}
        if len(ranks) > 1 or not all(1 <= a <= b <= c for a, b, c in zip(self.min, self.opt, self.max, strict=True)):
            shapes = ", ".join(f"{name} {list(shape)}" for name, shape in self)
            raise ValueError(f"{shapes}; expected equally many axes, and 1 <= min <= opt <= max in each")
        return self


class OrtTensorRt(OrtTarget):
    """The TensorRT provider; built engines are cached, since building takes minutes.

    TensorRT computes float32 in TF32 unless an environment variable of NVIDIA's libraries forbids it.
    """

    kind: Literal["ort-tensorrt"] = "ort-tensorrt"
    precision: Precision = Field("f32", description="int8 needs a model with QuantizeLinear and DequantizeLinear")
    shapes: dict[str, ShapeProfile] = Field(
        {}, description="by input, for a model with open axes: one engine, built in advance, in place of one a batch"
    )
    known_options: ClassVar[tuple[JsonObject, ...]] = tuple({"precision": name} for name in ("f32", "f16", "int8"))
    provider: ClassVar[str] = "TensorrtExecutionProvider"
    device: ClassVar[str | None] = "cuda"
    named: ClassVar[tuple[str, ...]] = ("precision",)
    named_if_changed: ClassVar[dict[str, str]] = {"shapes": "shaped"}

    def provider_options(self) -> dict[str, str]:
        """Return the precision, the shapes and the cache folder: TensorRT's cache ignores weights and shapes."""
        profiles = {
            f"trt_profile_{bound}_shapes": ",".join(
                f"{name}:{'x'.join(map(str, getattr(profile, bound)))}" for name, profile in self.shapes.items()
            )
            for bound in ("min", "opt", "max")
            if self.shapes
        }
        shaped = f"-{hashlib.sha256(str(profiles).encode()).hexdigest()[:8]}" if profiles else ""
        cache = gauntlet_home() / "tensorrt" / f"{MODEL}-{self.precision}{shaped}"
        options = {"trt_engine_cache_enable": "1", "trt_timing_cache_enable": "1"}
        options |= {"trt_engine_cache_path": str(cache), "trt_timing_cache_path": str(cache)}
        return options | profiles | ({ENABLE[self.precision]: "1"} if self.precision in ENABLE else {})

    def engine_options(self) -> JsonObject:
        """Return also whether TF32 is forbidden, and CUDA for nodes that TensorRT does not support."""
        forbidden: JsonObject = {} if self.precision == "tf32" else {"environment": {"NVIDIA_TF32_OVERRIDE": "0"}}
        return super().engine_options() | forbidden | {"others": ["CUDAExecutionProvider"]}
