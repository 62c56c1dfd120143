"""Weights and MACs of a model, by node and by operator type."""

import math

import numpy as np
import onnx
from onnx import helper, numpy_helper
from pydantic import Field

from gauntlet.core.frozen import Frozen, Number
from gauntlet.onnx_model.graph import all_nodes, constants, format_shape, inferred_shapes, operator_name
from gauntlet.onnx_model.macs import node_macs, with_batch_of_one

FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16}
NOT_PARAMETERS = {onnx.TensorProto.INT64, onnx.TensorProto.BOOL, onnx.TensorProto.STRING}


class WeightStatistics(Frozen):
    """The values of a node's largest stored tensor of floats."""

    minimum: Number
    maximum: Number
    mean: Number
    std: Number
    zeros: float = Field(description="share of values that are 0")
    non_finite: int = Field(description="how many values are not finite; the others are described")


class Layer(Frozen):
    """One node. A stored tensor that several nodes read counts for the first one only."""

    name: str = Field(description="the node's name, or its first output's")
    operator: str
    output: str = Field(description="shape of the first output, for one sample where the batch is dynamic")
    parameters: int
    weights_bytes: int
    macs: int | None = Field(description="None where a shape is unknown")
    weights: WeightStatistics | None = Field(None, description="None without floats, and for external data")


class OperatorRow(Frozen):
    """All nodes of one type."""

    operator: str
    count: int
    parameters: int
    weights_bytes: int
    macs: int | None = Field(description="None where any node's MACs are unknown")


def layers(proto: onnx.ModelProto) -> list[Layer]:
    """Return a row for every node, including those of branches."""
    shapes = inferred_shapes(with_batch_of_one(proto), through_values=True)
    stored = constants(proto.graph)
    # A dequantized weight belongs to the node that computes with it.
    through = {n.output[0]: n.input for n in all_nodes(proto.graph) if n.op_type == "DequantizeLinear" and n.output}
    through = {name: inputs for name, inputs in through.items() if inputs and inputs[0] in stored}
    rows = []
    for node in all_nodes(proto.graph):
        if node.op_type == "Constant" or (node.output and node.output[0] in through):
            continue
        names = [source for name in node.input for source in through.get(name, [name])]
        own = [stored.pop(name) for name in dict.fromkeys(names) if name in stored]
        rows.append(
            Layer(
                name=node.name or next(iter(node.output), ""),
                operator=operator_name(node),
                output=format_shape(shapes.get(node.output[0]) if node.output else None),
                parameters=sum(math.prod(t.dims) for t in own if t.data_type not in NOT_PARAMETERS),
                weights_bytes=sum(_bytes(t) for t in own),
                macs=node_macs(node, shapes),
                weights=_statistics(own),
            )
        )
    return rows


def _statistics(tensors: list[onnx.TensorProto]) -> WeightStatistics | None:
    largest = max(tensors, key=lambda tensor: math.prod(tensor.dims), default=None)
    if largest is None or largest.data_type not in FLOATS or largest.data_location == onnx.TensorProto.EXTERNAL:
        return None
    try:
        values = numpy_helper.to_array(largest)
    except (ValueError, TypeError):  # fewer bytes than its shape says
        return None
    finite = values[np.isfinite(values)]
    if not finite.size:
        return None
    return WeightStatistics(
        minimum=float(finite.min()),
        maximum=float(finite.max()),
        mean=float(finite.mean(dtype=np.float64)),
        std=float(finite.std(dtype=np.float64)),
        zeros=1 - np.count_nonzero(finite) / finite.size,
        non_finite=values.size - finite.size,
    )


def by_operator(rows: list[Layer]) -> tuple[OperatorRow, ...]:
    """Return the sums by operator type, sorted by bytes of weights, then MACs, both descending."""
    groups: dict[str, list[Layer]] = {}
    for row in rows:
        groups.setdefault(row.operator, []).append(row)
    summed = [
        OperatorRow(
            operator=operator,
            count=len(group),
            parameters=sum(row.parameters for row in group),
            weights_bytes=sum(row.weights_bytes for row in group),
            macs=None if any(row.macs is None for row in group) else sum(row.macs or 0 for row in group),
        )
        for operator, group in groups.items()
    ]
    return tuple(sorted(summed, key=lambda row: (-row.weights_bytes, -(row.macs or 0), -row.count, row.operator)))


def _bytes(tensor: onnx.TensorProto) -> int:
    if tensor.data_type == onnx.TensorProto.STRING:
        return sum(len(text) for text in tensor.string_data)
    try:
        kind = helper.tensor_dtype_to_string(tensor.data_type)
        item = int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    except (KeyError, ValueError, TypeError):  # not an ONNX type
        return 0
    values: int = math.prod(tensor.dims)
    return (values + 1) // 2 if kind.endswith("INT4") else values * item
