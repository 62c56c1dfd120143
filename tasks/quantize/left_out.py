"""Nodes that ONNX Runtime's quantizer cannot take, with the reason: recipes leave them in floating point."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

import onnx
from onnx import TensorProto, numpy_helper
from onnxruntime.quantization.registry import IntegerOpsRegistry, QDQRegistry, QLinearOpsRegistry

from gauntlet.core.errors import StageError, one_line
from gauntlet.onnx_model.graph import all_nodes, attributes_of
from gauntlet.onnx_model.model_file import is_large_file, read_for_editing, write_model
from gauntlet.onnx_model.normalization.order import sort_nodes
from gauntlet.onnx_model.operator_types import FLOAT_OPS
from gauntlet.runtime.session import open_session

LeftOut = Mapping[str, str]
"""Nodes that a recipe leaves in floating point -> the reason."""

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
WEIGHT_PLACES = {"Conv": (1,), "MatMul": (1,), "Gemm": (1,), "LSTM": (1, 2), "Attention": (1,), "Gather": (0,)}
"""Operators of dynamic quantization -> which inputs are weights."""
MUST_BE_STORED = ("Conv", "Attention")
"""Operators for which the dynamic quantizer raises where a weight is computed."""
QLinearOpsRegistry.pop("Where", None)  # its integer form stays in float, and reads tensors that are no longer there


def without_ranges(graph: onnx.GraphProto, known: Collection[str]) -> dict[str, str]:
    """Return the nodes with an activation that the calibration has no range for -> the reason.

    `known` are the tensors that have one: float32, and finite on every calibration sample.
    """
    stored = {tensor.name for tensor in graph.initializer}
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
    missing = {name for name, kind in types.items() if kind in FLOATS and name not in stored and name not in known}
    return {
        node.name: f"no range of {name!r}: not float32, or not finite on every calibration sample"
        for node in graph.node
        if node.op_type in QDQRegistry or node.op_type in QLinearOpsRegistry
        for name in (*node.input, *node.output)
        if name in missing
    }


def without_channels(graph: onnx.GraphProto) -> dict[str, str]:
    """Return the nodes for whose weights a scale for each channel is refused, by the quantizer or by the runtime."""
    other = {tensor.name for tensor in graph.initializer if len(tensor.dims) != 2}
    products = (node for node in graph.node if node.op_type == "MatMul")
    reasons = {node.name: "its weights have not two axes" for node in products if not other.isdisjoint(node.input)}
    for node in graph.node:
        if node.op_type == "ConvTranspose" and any(node.input[2:]) and attributes_of(node).get("group", 1) > 1:
            reasons[node.name] = "its groups share the scales of the weights, but not those of the bias"
    return reasons


def without_own_range(graph: onnx.GraphProto, *, integer_operators: bool = False) -> dict[str, str]:
    """Return the limits that ONNX Runtime's quantizer would drop, or give its input the range of -> the reason.

    With `integer_operators` instead of Q/DQ nodes, it does so whoever else reads the input.
    """
    shared, reasons = {output.name for output in graph.output}, dict[str, str]()
    if integer_operators:
        counts = Counter(name for node in all_nodes(graph) for name in node.input)
        shared |= {name for name, count in counts.items() if count > 1}
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type in ("Clip", "Relu") and node.input[0] in shared:
            reasons[node.name] = f"its range is not that of {node.input[0]!r}, which it and others read"
        elif node.op_type == "Clip":
            limits = {"min": 0.0, "max": 0.0} | attributes_of(node)  # attributes before opset 11
            for key, name in zip(("min", "max"), node.input[1:], strict=False):
                if name:
                    limits[key] = numpy_helper.to_array(stored[name]).item() if name in stored else math.nan
            if not limits["min"] <= 0 <= limits["max"]:
                reasons[node.name] = "its range is computed, or does not include zero as an integer's does"
    return reasons


def without_stored_weights(graph: onnx.GraphProto) -> dict[str, str]:
    """Return the nodes that dynamic quantization cannot take because of their weights -> the reason."""
    stored = {tensor.name: tensor.data_type for tensor in graph.initializer}
    reasons = {}
    for node in graph.node:
        weights = [node.input[place] for place in WEIGHT_PLACES.get(node.op_type, ()) if place < len(node.input)]
        if any(stored.get(name, TensorProto.FLOAT) != TensorProto.FLOAT for name in weights):
            reasons[node.name] = "its weights are not float32"
        elif node.op_type in MUST_BE_STORED and any(name not in stored for name in weights):
            reasons[node.name] = "its weights are computed"
        elif any(stored.get(name) == TensorProto.FLOAT16 for name in node.input) and node.op_type in IntegerOpsRegistry:
            reasons[node.name] = "it computes in float16"
    return reasons


def quantize_what_works(
    write: Callable[[Collection[str]], None], target: Path, graph: onnx.GraphProto, left_out: LeftOut
) -> LeftOut:
    """Write the quantized model to `target`; where that fails, or it does not load, only products are quantized.

    `write` calls the quantizer for `graph`, given the nodes to leave out, at first `left_out`; return those left out.

    Raises:
        StageError: when the quantizer fails on the products, too.
    """
    try:
        write(left_out)
        _finish(target)
    except Exception as error:  # the quantizer's own exceptions share no public base
        reason = f"ONNX Runtime's quantizer fails with it: {one_line(error)}"
        others = {node.name: reason for node in graph.node if node.op_type not in FLOAT_OPS}
        left_out = {**others, **left_out}
        try:
            write(left_out)
            _finish(target)
        except StageError:
            raise
        except Exception as second:
            raise StageError(f"ONNX Runtime's quantizer fails: {one_line(second)}") from second
    return left_out


def _finish(target: Path) -> None:
    """Sort the nodes, and load the model, if it is not large: an invalid file is noticed here."""
    proto = read_for_editing(target)
    with suppress(StageError):  # sparse weights; an unsorted file does not load
        sort_nodes(proto)
    write_model(proto, target)
    if not is_large_file(target):
        open_session(target, level="off")
