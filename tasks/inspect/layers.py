"""Where the bytes and the arithmetic are: a row a node, and a row an operator type."""

import math
from collections.abc import Iterator

import onnx
from onnx import helper
from pydantic import Field

from tasks.frozen import Frozen
from tasks.runtime.graph import known_axes, nodes, text_of_axes
from tasks.runtime.node_macs import macs_of, one_sample

NOT_PARAMETERS = {onnx.TensorProto.INT64, onnx.TensorProto.BOOL, onnx.TensorProto.STRING}


class Layer(Frozen):
    """One node. A stored tensor that several nodes read counts for the first of them."""

    name: str = Field(description="the node's name, or its first output's")
    operator: str
    output: str = Field(description="shape of the first output, for one sample where the batch is dynamic")
    parameters: int
    weights_bytes: int
    macs: int | None = Field(description="None where a shape is unknown")


class OperatorRow(Frozen):
    """All nodes of one type."""

    operator: str
    count: int
    parameters: int
    weights_bytes: int
    macs: int | None = Field(description="None where those of any node are unknown")


def layers(proto: onnx.ModelProto) -> list[Layer]:
    """Return a row for every node, those of branches included."""
    shapes = known_axes(one_sample(proto), through_values=True)
    stored = {tensor.name: tensor for tensor in _stored(proto.graph)}
    # A quantised weight becomes float at each call; it belongs to the node that computes with it.
    through = {n.output[0]: n.input for n in nodes(proto.graph) if n.op_type == "DequantizeLinear" and n.output}
    through = {name: inputs for name, inputs in through.items() if inputs and inputs[0] in stored}
    rows = []
    for node in nodes(proto.graph):
        if node.op_type == "Constant" or (node.output and node.output[0] in through):
            continue
        names = [source for name in node.input for source in through.get(name, [name])]
        own = [stored.pop(name) for name in dict.fromkeys(names) if name in stored]
        rows.append(
            Layer(
                name=node.name or next(iter(node.output), ""),
                operator=f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type,
                output=text_of_axes(shapes.get(node.output[0]) if node.output else None),
                parameters=sum(math.prod(t.dims) for t in own if t.data_type not in NOT_PARAMETERS),
                weights_bytes=sum(_bytes(t) for t in own),
                macs=macs_of(node, shapes),
            )
        )
    return rows


def by_operator(rows: list[Layer]) -> tuple[OperatorRow, ...]:
    """Return the sums by operator type, the one with the most bytes first, then the most MACs."""
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


def _stored(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield initializers and constants under the names by which nodes read them, those of inner graphs included."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value" and node.output:
                tensor = attribute.t
                yield onnx.TensorProto(name=node.output[0], dims=tensor.dims, data_type=tensor.data_type)
            for body in (attribute.g, *attribute.graphs):
                yield from _stored(body)


def _bytes(tensor: onnx.TensorProto) -> int:
    if tensor.data_type == onnx.TensorProto.STRING:
        return sum(len(text) for text in tensor.string_data)
    try:
        kind = helper.tensor_dtype_to_string(tensor.data_type)
        item = int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    except (KeyError, ValueError, TypeError):  # no type that ONNX knows
        return 0
    values: int = math.prod(tensor.dims)
    return (values + 1) // 2 if kind.endswith("INT4") else values * item
