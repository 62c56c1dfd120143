"""A batch that is fixed in the declared shapes, or in a Reshape whose constant shape holds it, made dynamic."""

from collections.abc import Sequence
from math import prod

import numpy as np
import onnx
from onnx import numpy_helper

from gauntlet.onnx_model.graph import (
    Shape,
    all_graphs,
    all_nodes,
    attributes_of,
    constants,
    first_axis,
    inferred_shapes,
    int_values,
    required_inputs,
    tensor_shape,
)
from gauntlet.onnx_model.operator_types import CONTROL_FLOW

MAX_BATCH = 1 << 20
"""A larger first axis is not taken for a batch."""
NO_COMMON_AXIS = "the inputs and outputs have no first axis of one size"


def constant_reshapes(graph: onnx.GraphProto) -> list[tuple[onnx.NodeProto, list[int]]]:
    """Return the Reshape nodes with a constant shape of several axes, which is stored in the model file itself."""
    shapes = {name: int_values(t) for name, t in constants(graph).items() if _is_shape(t)}
    nodes = [node for node in graph.node if node.op_type == "Reshape" and len(node.input) > 1]
    return [(node, shape) for node in nodes if len(shape := shapes.get(node.input[1], [])) > 1]


def _is_shape(tensor: onnx.TensorProto) -> bool:
    stored = tensor.data_location != onnx.TensorProto.EXTERNAL
    return stored and tensor.data_type == onnx.TensorProto.INT64 and len(tensor.dims) == 1 and tensor.dims[0] <= 16


def fixed_batch(graph: onnx.GraphProto) -> tuple[int | None, str]:
    """Return the size that is fixed as first axis of every input and output, or None and why there is none."""
    inputs = required_inputs(graph)
    sizes = {first_axis(value) for value in inputs}
    if len(sizes) != 1 or not isinstance(size := next(iter(sizes)), int):
        return None, "the batch is dynamic" if not any(isinstance(axis, int) for axis in sizes) else NO_COMMON_AXIS
    if size > MAX_BATCH or any(len(tensor_shape(value) or ()) < 2 for value in inputs):
        return None, NO_COMMON_AXIS
    if any(first_axis(output) not in (size, None) or not tensor_shape(output) for output in graph.output):
        return None, NO_COMMON_AXIS
    if any(node.op_type in CONTROL_FLOW for node in all_nodes(graph)):
        return None, "control flow decides for all samples of a call at once"
    return size, ""


def free_batch(proto: onnx.ModelProto, frozen: Sequence[onnx.ValueInfoProto], batch: int) -> str:
    """Make the first axis of the `frozen` inputs and outputs dynamic, in place; return what was done.

    `batch` is the batch size with which the model runs: it is also removed from the constant shapes of Reshapes.
    """
    graph = proto.graph
    firsts = [first_axis(v) for v in (*frozen, *required_inputs(graph))]
    name = next((a for a in firsts if isinstance(a, str)), "batch")
    for value in (*frozen, *(output for output in graph.output if first_axis(output) == batch)):
        value.type.tensor_type.shape.dim[0].dim_param = name
    for inner in all_graphs(graph):
        del inner.value_info[:]  # what was inferred from the frozen batch
    rewritten = _free_reshapes(proto, batch, name)
    reshapes = f", and removed its size from {rewritten} Reshape{'s' if rewritten != 1 else ''}" if rewritten else ""
    return f"made the batch axis dynamic ('{name}'){reshapes}"


def _free_reshapes(proto: onnx.ModelProto, batch: int, name: str) -> int:
    """Rewrite the Reshapes that the batch reaches, in graph order; return how many."""
    rewritten = 0
    bare = onnx.ModelProto()
    while candidates := [(node, shape) for node, shape in constant_reshapes(proto.graph) if shape[0] == batch]:
        bare.CopyFrom(proto)
        for output in bare.graph.output:  # a declared shape would hide the inferred one
            output.type.tensor_type.ClearField("shape")
        known = inferred_shapes(bare, through_values=True)
        reached = [(node, shape) for node, shape in candidates if name in known.get(node.input[0], ())]
        for node, shape in reached:
            own = f"{node.input[1]}_any_batch_{rewritten}"
            freed = np.array(_freed(node, shape, known[node.input[0]], name), np.int64)
            proto.graph.initializer.append(numpy_helper.from_array(freed, own))
            node.input[1] = own
            rewritten += 1
        if not reached:
            break
    return rewritten


def _freed(node: onnx.NodeProto, shape: list[int], data: Shape, name: str) -> list[int]:
    """Return a shape for a Reshape of `data` in which the batch is copied (0) or inferred (-1)."""
    if data[0] == name and not attributes_of(node).get("allowzero"):
        return [0, *shape[1:]]
    if -1 in shape:  # -1 is in use: it can move to the batch only if the size it stands for is known
        rest = [axis for axis in data[1:] if isinstance(axis, int)]
        fixed = prod(n for n in shape[1:] if n > 0)
        if len(rest) == len(data) - 1 and fixed and prod(rest) % fixed == 0:
            shape = [prod(rest) // fixed if n == -1 else n for n in shape]
    return [-1, *shape[1:]]
