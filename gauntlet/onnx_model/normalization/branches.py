"""If nodes whose condition is a constant, replaced by the branch that is taken."""

import logging
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from gauntlet.onnx_model.graph import all_nodes, constants, inferred_shapes
from gauntlet.onnx_model.normalization.order import run_passes

MAX_ROUNDS = 8
"""A branch may hold further If nodes, which become constant one level at a time."""


def fold_branches(proto: onnx.ModelProto) -> str:
    """Fold constants and replace If nodes with a constant condition; unchanged where no condition is constant."""
    before = if_nodes(proto)
    if not before:
        return ""
    folded = onnx.ModelProto()
    folded.CopyFrom(proto)
    left = before
    for _ in range(MAX_ROUNDS):
        _fold_known_sizes(folded)
        _fold(folded)
        was, left = left, if_nodes(folded)
        if left == was or not left:
            break
    if left == before:
        return ""
    proto.CopyFrom(folded)
    return f"folded {before - left} of {before} If nodes, whose condition is constant"


def if_nodes(proto: onnx.ModelProto) -> int:
    """Return the number of If nodes, those inside others included."""
    return sum(node.op_type == "If" for node in all_nodes(proto.graph))


def _fold_known_sizes(proto: onnx.ModelProto) -> None:
    """Replace the elements of a shape that are known although others are not, which onnxscript leaves as they are."""
    graph, known, stored = proto.graph, inferred_shapes(proto), constants(proto.graph)
    measured = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Shape" and not node.attribute}
    for node in [node for node in graph.node if node.op_type == "Gather" and node.input[0] in measured]:
        axes, index = known.get(measured[node.input[0]]), stored.get(node.input[1])
        if axes is None or index is None or any(attribute.i for attribute in node.attribute):
            continue
        chosen = [axes[i] for i in numpy_helper.to_array(index).ravel() if -len(axes) <= i < len(axes)]
        if len(chosen) == np.prod(index.dims, dtype=int) and all(isinstance(axis, int) for axis in chosen):
            sizes = np.array(chosen, np.int64).reshape(index.dims)
            graph.initializer.append(numpy_helper.from_array(sizes, node.output[0]))
            graph.node.remove(node)


def _fold(proto: onnx.ModelProto) -> None:
    """Fold constants as onnxscript does, with the shapes that ONNX infers."""
    from onnx_ir.passes import PassResult
    from onnxscript.optimizer import fold_constants_ir

    def fold(model: Any) -> Any:
        return PassResult(model, modified=bool(fold_constants_ir(model, onnx_shape_inference=True).modified))

    logger = logging.getLogger("onnxscript.optimizer")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns of every node that it leaves as it is
    try:
        run_passes(proto, fold)
    finally:
        logger.setLevel(level)
