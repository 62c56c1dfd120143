"""Operator types that multiply, in integers and floats, or hold graphs. Workers import this, so it imports nothing."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

INTEGER_OPS = {"ConvInteger", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat", "MatMulNBits"}
INTEGER_OPS |= {"QGemm", "QLinearConv", "QLinearMatMul"}
FLOAT_OPS = {"Conv", "ConvTranspose", "FusedConv", "FusedGemm", "FusedMatMul", "Gemm", "MatMul", "NhwcFusedConv"}
CONTROL_FLOW = {"If", "Loop", "Scan"}
QUANTIZED_OPS = INTEGER_OPS | {"DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear"}


def quantized_nodes(model: "onnx.ModelProto") -> int:
    """Return the number of nodes that compute in integers, or convert between integers and floats."""
    return sum(node.op_type in QUANTIZED_OPS for node in model.graph.node)
