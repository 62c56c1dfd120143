"""Scores and boxes in one tensor: INT8 gives both one scale, and of 256 levels the scores keep a few."""

import onnx

from gauntlet.onnx_model.graph import node_label
from wings.inspection.library.diagnosis.context import ModelContext
from wings.inspection.library.diagnosis.findings import Finding

MOVES_VALUES = {
    "Reshape",
    "Transpose",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
    "Slice",
    "Split",
    "Gather",
    "Identity",
    "Cast",
}
"""Operators whose outputs are values of their first input."""
WITHIN_ONE = {"Sigmoid", "HardSigmoid", "Softmax"}
WIDE = {"Mul", "Add", "Sub", "Div", "Exp", "Conv", "Gemm", "MatMul", "BatchNormalization"}
"""Operators whose outputs usually go beyond 1."""


def find(context: ModelContext) -> Finding | None:
    """Check for an output that joins values from 0 to 1 with larger ones."""
    made = {name: node for node in context.graph.node for name in node.output}
    for value in context.graph.output:
        joined, sources = _sources(value.name, made)
        bounded = [_is_within_one(node, made) for node in sources]
        if joined and any(bounded) and any(n.op_type in WIDE and not b for n, b in zip(sources, bounded, strict=True)):
            cause = f"{node_label(joined[0])} joins scores from 0 to 1 with larger values: they share one INT8 scale"
            fix = "quantize with float_head: true (quantize: auto tries it), or export scores and boxes apart"
            return Finding(fault="shared_scale", cause=cause, fix=fix, fixable=False, severity="warning")
    return None


def _sources(output: str, made: dict[str, onnx.NodeProto]) -> tuple[list[onnx.NodeProto], list[onnx.NodeProto]]:
    """Return the concatenations whose values reach an output unchanged, and the nodes that compute these values."""
    joined: list[onnx.NodeProto] = []
    sources: list[onnx.NodeProto] = []
    names, seen = [output], set[str]()
    while names:
        name = names.pop()
        node = made.get(name)
        if node is None or name in seen:
            continue
        seen.add(name)
        if node.op_type == "Concat":
            joined.append(node)
            names += node.input
        elif node.op_type in MOVES_VALUES:
            names.append(node.input[0])
        else:
            sources.append(node)
    return joined, sources


def _is_within_one(node: onnx.NodeProto, made: dict[str, onnx.NodeProto]) -> bool:
    """Return whether a node's values are from 0 to 1; so is the product of such values, as of two scores."""
    if node.op_type != "Mul":
        return node.op_type in WITHIN_ONE
    factors = [source for name in node.input for source in _sources(name, made)[1] or [node]]
    return all(factor.op_type in WITHIN_ONE for factor in factors)
