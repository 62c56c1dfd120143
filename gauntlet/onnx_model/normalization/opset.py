"""A newer version of the standard operators and of the file format."""

from collections.abc import Iterator
from contextlib import contextmanager

import onnx
import onnx.version_converter
from onnx import helper

from gauntlet.core.errors import StageError, one_line
from gauntlet.onnx_model.graph import (
    all_graphs,
    all_nodes,
    attributes_of,
    inferred_shapes,
    opset_versions,
    replace_model,
    set_attributes,
)
from gauntlet.onnx_model.normalization.constants import lift_constants

PER_CHANNEL_OPSET = 13
"""The first opset whose DequantizeLinear has a scale for each channel."""


def raise_opset(proto: onnx.ModelProto, target: int, max_ir_version: int, least: int = PER_CHANNEL_OPSET) -> str:
    """Convert to a newer opset, and to the IR version that it needs; unchanged where the model has it already.

    Where the whole way fails, it goes one version at a time and stops at the last that works, from `least` on.

    Raises:
        StageError: when not even `least` can be reached, or the model has functions, which have opsets of their own.
    """
    was = opset_versions(proto).get("ai.onnx")
    if was is None or was >= target:
        return ""
    if proto.functions:
        raise StageError("the model has functions with opsets of their own")
    with kept_softmaxes(proto, was, target):
        converted, why = _converted(proto, was, target)
    reached = opset_versions(converted)["ai.onnx"]
    if reached <= was or reached < min(least, target):
        raise StageError(f"opset {was} cannot be converted to {target}: {why}")
    before, needed = proto.ir_version, helper.find_min_ir_version_for(converted.opset_import, True)
    ir_version = min(max_ir_version, max(before, needed))
    show_softmaxes(converted)
    restore_coordinates(converted, was)
    replace_model(proto, converted)
    proto.ir_version = ir_version
    for graph in all_graphs(proto.graph):  # the converter stores wrong shapes of the nodes that it adds
        del graph.value_info[:]
    lift_constants(proto)  # those that it adds
    change = f"opset {was} to {reached}" + (f", IR version {before} to {ir_version}" if ir_version != before else "")
    return change + (f"; not further: {why}" if reached < target else "")


def _converted(proto: onnx.ModelProto, was: int, target: int) -> tuple[onnx.ModelProto, str]:
    """Return the model at the target, or at the last version on the way that works, with the reason."""
    try:
        return onnx.version_converter.convert_version(proto, target), ""
    except Exception as error:  # the converter raises RuntimeError, ValueError and its own
        why = one_line(error)
    reached = proto
    for version in range(was + 1, target):
        try:
            reached = onnx.version_converter.convert_version(reached, version)
        except Exception as error:
            return reached, one_line(error)
    return reached, why


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
    hidden = list[onnx.NodeProto]()
    if was < LAST_AXIS_OPSET <= target:
        shapes, standard = inferred_shapes(proto), [n for n in proto.graph.node if n.domain in ("", "ai.onnx")]
        known = [node for node in standard if node.op_type in SOFTMAXES and node.input[0] in shapes]
        hidden = [n for n in known if attributes_of(n).get("axis", 1) in (-1, len(shapes[n.input[0]]) - 1)]
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
            set_attributes(node, axis=-1)
    for entry in [entry for entry in proto.opset_import if entry.domain == KEPT]:
        proto.opset_import.remove(entry)


def restore_coordinates(proto: onnx.ModelProto, was: int) -> None:
    """Give every Resize the coordinates of opset 10; the converter leaves it those that are the default since."""
    for node in all_nodes(proto.graph) if was < RESIZE_OPSET else ():
        if node.op_type == "Resize" and node.domain in ("", "ai.onnx"):
            set_attributes(node, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
