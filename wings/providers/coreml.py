"""ONNX Runtime on Apple's CoreML."""

from typing import ClassVar, Literal

from gauntlet.targets.base import OperatorList, Precision
from gauntlet.targets.ort import OrtTarget

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
