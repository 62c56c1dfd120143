"""A newer version of the standard operators and of the file format."""

import onnx
import onnx.version_converter
from onnx import helper

from gauntlet.core.errors import StageError, one_line
from gauntlet.onnx_model.graph import all_graphs, opset_versions, replace_model
from gauntlet.onnx_model.normalization.constants import lift_constants
from gauntlet.onnx_model.normalization.converter_faults import kept_softmaxes, restore_coordinates, show_softmaxes

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
    ir_version = min(
        max_ir_version, max(proto.ir_version, helper.find_min_ir_version_for(converted.opset_import, True))
    )
    before = proto.ir_version
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
