"""Multiply-accumulate operations of one node, from shapes alone. `tasks.runtime.macs` counts what really ran."""

import math
from pathlib import Path

import onnx

from tasks.runtime.graph import Axes, axes, known_axes, nodes, read_graph, required_inputs, skeleton
from tasks.runtime.macs import FLOAT, INTEGER, quantized_nodes

COUNTED = INTEGER | FLOAT
UNCOUNTED = {"Attention", "GRU", "LSTM", "RNN", "Einsum", "MultiHeadAttention", "DeformConv", "If", "Loop", "Scan"}
"""These multiply too, in ways that no shape alone tells."""


def macs_of(node: onnx.NodeProto, shapes: dict[str, Axes]) -> int | None:
    """Return output values x length of the sum behind each; 0 for other operators, None where a shape is unknown."""
    if node.op_type in UNCOUNTED:
        return None
    if node.op_type not in COUNTED:
        return 0
    if not node.output or len(node.input) < 2:
        return None
    output, left = _size(shapes.get(node.output[0])), shapes.get(node.input[0])
    if "Conv" in node.op_type:
        # Weights (outputs, inputs / groups, *kernel); a transposed convolution's (inputs, outputs / groups, *kernel).
        place = 3 if node.op_type == "QLinearConv" and len(node.input) > 3 else 1
        sums = _size((shapes.get(node.input[place]) or (None,))[1:])
        values = _size(left) if node.op_type == "ConvTranspose" else output
        return None if values is None or sums is None else values * sums
    if not left:
        return None
    transposed = any(a.name == "transA" and a.i for a in node.attribute)
    length = left[-2] if transposed and len(left) > 1 else left[-1]
    return output * length if output is not None and isinstance(length, int) else None


def one_sample(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without its weights' values, with a dynamic batch set to one sample."""
    bare = skeleton(proto)
    firsts = [(i, (axes(i) or (1,))[0]) for i in required_inputs(bare.graph)]
    batch = {axis for _, axis in firsts if isinstance(axis, str)}
    if any(not isinstance(axis, int) for _, axis in firsts):
        del bare.graph.value_info[:]
        for output in bare.graph.output:
            output.type.tensor_type.ClearField("shape")
    for value, first in firsts:
        for place, dim in enumerate(value.type.tensor_type.shape.dim):
            if (place == 0 and not isinstance(first, int)) or (dim.dim_param and dim.dim_param in batch):
                dim.dim_value = 1
    return bare


def macs_by_node(proto: onnx.ModelProto) -> dict[str, tuple[str, int]]:
    """Return operator and operations of each named node that multiplies, for one sample; 0 where a shape is unknown."""
    shapes = known_axes(one_sample(proto), through_values=True)
    return {n.name: (n.op_type, macs_of(n, shapes) or 0) for n in nodes(proto.graph) if n.name and n.op_type in COUNTED}


def read_model(model: Path) -> tuple[bool, dict[str, tuple[str, int]]]:
    """Return whether a model is quantised, and the multiplications of its nodes where they can be known."""
    proto = read_graph(model)
    try:
        macs = macs_by_node(proto)
    except Exception:  # shape inference refuses what the runtime takes; nodes are counted then
        macs = {}
    return quantized_nodes(proto) > 0, macs


def _size(shape: Axes | None) -> int | None:
    if shape is None:
        return None
    known = [axis for axis in shape if isinstance(axis, int)]
    return math.prod(known) if len(known) == len(shape) else None
