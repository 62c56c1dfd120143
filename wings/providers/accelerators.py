"""ONNX Runtime on NVIDIA's, AMD's, Apple's and Qualcomm's devices."""

import hashlib
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from gauntlet.core.frozen import Frozen, JsonObject
from gauntlet.core.workspace import gauntlet_home
from gauntlet.targets.base import OperatorList, Precision
from gauntlet.targets.ort import MODEL, OrtTarget


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
    named_entries: ClassVar[str] = "properties"
    set_elsewhere: ClassVar[dict[str, str]] = {"use_tf32": "tf32", "device_id": "device_id"}
    named_if_changed: ClassVar[dict[str, str]] = {"tf32": "tf32", "device_id": "gpu{}"}

    @property
    def declared_precision(self) -> Precision:
        """TF32 where it is allowed."""
        return "tf32" if self.tf32 else "f32"

    def provider_options(self) -> dict[str, str]:
        """Return the options by their names in ONNX Runtime."""
        return {**self.properties, "use_tf32": str(int(self.tf32)), "device_id": str(self.device_id)}


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
        {}, description="by input, for open axes: one engine in advance, instead of one a batch"
    )
    known_options: ClassVar[tuple[JsonObject, ...]] = tuple({"precision": name} for name in ("f32", "f16", "int8"))
    int8_options: ClassVar[JsonObject] = {"activations": "s8", "symmetric": True, "qdq_placement": "inputs"}
    """TensorRT has no zero points."""
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


class OrtRocm(OrtTarget):
    """The MIGraphX provider of ROCm, which replaced the ROCm provider in ONNX Runtime 1.23."""

    kind: Literal["ort-rocm"] = "ort-rocm"
    precision: Literal["f32", "f16"] = "f32"
    provider: ClassVar[str] = "MIGraphXExecutionProvider"
    named: ClassVar[tuple[str, ...]] = ("precision",)

    def provider_options(self) -> dict[str, str]:
        """Return the precision."""
        return {"migraphx_fp16_enable": str(int(self.precision == "f16"))}


ML_PROGRAM_OPERATORS = """
    Add ArgMax AveragePool Cast Clip Concat Conv ConvTranspose DepthToSpace Div Elu Erf Exp Gelu Gemm
    GlobalAveragePool GlobalMaxPool GridSample GroupNormalization InstanceNormalization
    LayerNormalization LeakyRelu MatMul Max MaxPool Mul PRelu Pow Reciprocal ReduceMax ReduceMean
    ReduceSum Relu Reshape Resize Round Shape Sigmoid Slice Softmax Softplus Split Sqrt Squeeze Sub
    Tanh Transpose Unsqueeze
"""
"""From tools/ci_build/github/apple/coreml_supported_mlprogram_ops.md in the repository of ONNX Runtime."""
ML_PROGRAM = OperatorList(
    source="ONNX Runtime's list for CoreML's ML programs", operators=frozenset(ML_PROGRAM_OPERATORS.split())
)


class OrtCoreMl(OrtTarget):
    """The CoreML provider: macOS and iOS only. Its neural engine and GPU compute in float16."""

    kind: Literal["ort-coreml"] = "ort-coreml"
    precision: ClassVar[Precision] = "f16"
    provider: ClassVar[str] = "CoreMLExecutionProvider"
    documented_operators: ClassVar[OperatorList | None] = ML_PROGRAM

    def provider_options(self) -> dict[str, str]:
        """Return units and format."""
        return {"MLComputeUnits": "ALL", "ModelFormat": "MLProgram"}


class OrtQnn(OrtTarget):
    """The QNN provider: the Hexagon tensor processor runs quantized models, or computes floats in float16."""

    kind: Literal["ort-qnn"] = "ort-qnn"
    precision: ClassVar[Precision] = "f16"
    provider: ClassVar[str] = "QNNExecutionProvider"

    def provider_options(self) -> dict[str, str]:
        """Return the part of the chip and its mode."""
        return {"backend_type": "htp", "htp_performance_mode": "burst"}
