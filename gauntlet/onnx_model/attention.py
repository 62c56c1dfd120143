"""Find attention in a graph: a softmax of a product of two computed tensors, multiplied by a third one."""

from pathlib import Path
from typing import Literal

import onnx

from gauntlet.core.errors import StageError
from gauntlet.onnx_model.graph import all_graphs, constants, read_untrusted_graph

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
