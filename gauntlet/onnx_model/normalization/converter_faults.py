"""Known faults of ONNX's version converter, and how to get around them."""

from collections.abc import Iterator
from contextlib import contextmanager

import onnx
from onnx import helper

from gauntlet.onnx_model.graph import Shape, all_nodes, inferred_shapes

LAST_AXIS_OPSET = 13
"""The first opset whose softmax works along one axis; before, it flattens all axes from there on."""
RESIZE_OPSET = 11
"""The first opset whose Resize has a choice of coordinates."""
KEPT = "gauntlet.kept"
SOFTMAXES = {"Softmax", "LogSoftmax", "Hardmax"}


@contextmanager
def kept_softmaxes(proto: onnx.ModelProto, was: int, target: int) -> Iterator[None]:
    """Hide from the converter what means the same before and after: a softmax along the last axis.

    The converter surrounds it with Shape, Flatten and Reshape nodes, and does not convert Hardmax at all.
    """
    hidden = _along_the_last_axis(proto.graph, inferred_shapes(proto)) if was < LAST_AXIS_OPSET <= target else []
    for node in hidden:
        node.domain = KEPT
    if hidden:
        proto.opset_import.append(helper.make_opsetid(KEPT, 1))
    try:
        yield
    finally:
        show_softmaxes(proto)


def show_softmaxes(proto: onnx.ModelProto) -> None:
    """Undo `kept_softmaxes`, in this model or in the converted one."""
    for node in all_nodes(proto.graph):
        if node.domain == KEPT:
            node.domain = ""
            kept = [attribute for attribute in node.attribute if attribute.name != "axis"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("axis", -1)])
    for entry in [entry for entry in proto.opset_import if entry.domain == KEPT]:
        proto.opset_import.remove(entry)


def _along_the_last_axis(graph: onnx.GraphProto, shapes: dict[str, Shape]) -> list[onnx.NodeProto]:
    softmaxes = []
    for node in graph.node:
        if node.op_type in SOFTMAXES and node.domain in ("", "ai.onnx") and node.input[0] in shapes:
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
            if axis in (-1, len(shapes[node.input[0]]) - 1):
                softmaxes.append(node)
    return softmaxes


def restore_coordinates(proto: onnx.ModelProto, was: int) -> None:
    """Give every Resize the coordinates of opset 10; the converter leaves it those that are the default since."""
    for node in all_nodes(proto.graph) if was < RESIZE_OPSET else ():
        if node.op_type == "Resize" and node.domain in ("", "ai.onnx"):
            kept = [a for a in node.attribute if a.name not in ("coordinate_transformation_mode", "nearest_mode")]
            coordinates = helper.make_attribute("coordinate_transformation_mode", "asymmetric")
            del node.attribute[:]
            node.attribute.extend([*kept, coordinates, helper.make_attribute("nearest_mode", "floor")])
