"""What a model already is: quantized, half precision, or control flow."""

import math
from collections import Counter
from pathlib import Path
from typing import Literal

import onnx

from gauntlet.core.errors import StageError
from gauntlet.onnx_model.graph import all_graphs, all_nodes, constants, read_untrusted_graph
from gauntlet.onnx_model.operator_types import CONTROL_FLOW, QUANTIZED_OPS

Precision = Literal["float32", "float16", "quantized", "other"]
HALF = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
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
            count = math.prod(tensor.dims)
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
    return {kind: counts[kind] for kind in sorted(CONTROL_FLOW) if counts[kind]}


Operators = Literal["convolutions", "matrices", "attention", "unknown"]
"""Which operators dominate a model."""

FUSED = {"Attention", "GroupQueryAttention", "MultiHeadAttention", "QAttention"}
"""Operators of the standard and of ONNX Runtime that compute attention as a whole."""
PRODUCTS = {"Einsum", "FusedMatMul", "MatMul"}
BETWEEN = {"Add", "Cast", "Clip", "Div", "Dropout", "Identity", "Mul", "Reshape", "Sub", "Transpose", "Where"}
"""What exporters write between the products and the softmax: scale, mask, dropout, changes of shape."""


def has_attention(graph: onnx.GraphProto) -> bool:
    """Return whether a graph, or one inside it, computes attention. Nodes must be in topological order."""
    stored = set(constants(graph))
    return any(_computes_attention(part, stored) for part in all_graphs(graph))


def reads_attention(model: Path) -> bool:
    """Return whether an ONNX file has attention; false for one that cannot be read, which a stage will say."""
    try:
        return has_attention(read_untrusted_graph(model).graph)
    except (OSError, StageError):
        return False


def _computes_attention(graph: onnx.GraphProto, stored: set[str]) -> bool:
    scores, shares = set[str](), set[str]()  # tensors computed from a product, and from the softmax of one
    for node in graph.node:
        if node.op_type in FUSED:
            return True
        reads = set(node.input)
        if node.op_type in PRODUCTS and not reads & stored:
            if reads & shares:
                return True
            scores.update(node.output)
        elif node.op_type == "Softmax" and reads & scores:
            shares.update(node.output)
        elif node.op_type in BETWEEN:
            for known in (scores, shares):
                if reads & known:
                    known.update(node.output)
    return False
