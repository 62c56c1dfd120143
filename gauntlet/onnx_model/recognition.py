"""What a model already is: quantized, half precision, or control flow."""

from collections import Counter
from typing import Literal

import onnx

from gauntlet.onnx_model.graph import all_graphs, all_nodes
from gauntlet.onnx_model.operator_types import QUANTIZED_OPS

Precision = Literal["float32", "float16", "quantized", "other"]
HALF = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
CONTROL_FLOW = ("If", "Loop", "Scan")
QUANTIZED_PREFIXES = ("QLinear", "QGemm", "QAttention", "QEmbed", "DynamicQuantize", "MatMulInteger", "ConvInteger")
SMALL = 16
"""Tensors with fewer elements are shapes and scalars, whose type says nothing."""


def precision_of(proto: onnx.ModelProto) -> tuple[Precision, str]:
    """Return what a model computes in, and how that is known; empty for ordinary float32 models."""
    kinds = Counter(node.op_type for node in all_nodes(proto.graph))
    integer = Counter({k: n for k, n in kinds.items() if k in QUANTIZED_OPS or k.startswith(QUANTIZED_PREFIXES)})
    if integer:
        most = ", ".join(f"{count} {kind}" for kind, count in integer.most_common(3))
        return "quantized", f"it has {most} nodes"
    elements = Counter[int]()
    for graph in all_graphs(proto.graph):
        for tensor in graph.initializer:
            count = 1
            for axis in tensor.dims:
                count *= axis
            if count >= SMALL:
                elements[tensor.data_type] += count
    half = sum(elements[kind] for kind in HALF)
    if half > elements[onnx.TensorProto.FLOAT]:
        return "float16", f"{half} of its {sum(elements.values())} weights are half precision"
    if elements[onnx.TensorProto.DOUBLE] > elements[onnx.TensorProto.FLOAT]:
        return "other", "its weights are float64"
    return "float32", ""


def control_flow_of(proto: onnx.ModelProto) -> dict[str, int]:
    """Return the number of nodes of each kind of control flow."""
    counts = Counter(node.op_type for node in all_nodes(proto.graph))
    return {kind: counts[kind] for kind in CONTROL_FLOW if counts[kind]}
