"""Summarize a model file, by node and operator type, in a child process, without running it or reading its weights."""

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from pydantic import Field

from gauntlet.core.errors import StageError, one_line
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.signature import Signature
from gauntlet.onnx_model.graph import (
    Shape,
    all_nodes,
    constants,
    format_shape,
    format_type,
    inferred_shapes,
    operator_name,
    opset_versions,
    parameter_count,
    read_untrusted_graph,
    required_inputs,
    tensor_shape,
)
from gauntlet.onnx_model.macs import node_macs, with_batch_of_one
from gauntlet.runtime.subprocess_runner import SubprocessFailed, run_in_subprocess
from wings.inspection.library import refuse_wrong_file

FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16}


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
                parameters=parameter_count(own),
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


TIMEOUT_S = 7.0
MEMORY_BYTES = 1_500_000_000


class Inspection(Frozen):
    """The result of `gauntlet inspect`. MACs are those of convolutions and matrix products for one sample."""

    model: str
    graph_name: str
    size_bytes: int = Field(description="of the file itself, without external data")
    producer: str
    ir_version: int
    opsets: dict[str, int]
    inputs: dict[str, str] = Field(description="type and shape of the required inputs, by name")
    outputs: dict[str, str]
    parameters: int = Field(description="stored values, without int64 (shapes and indices), bool and string tensors")
    weights_bytes: int = Field(description="of all stored tensors, including external data")
    macs: int = Field(description="of all nodes with known shapes")
    nodes_of_unknown_macs: int
    operators: tuple[OperatorRow, ...] = Field(description="largest weights first")
    layers: tuple[Layer, ...] = Field(description="nodes with stored tensors or MACs, in the graph's order")
    graph: tuple[str, ...] = Field(description="one line per node; nodes of branches are indented")
    signature: Signature | None
    metadata: dict[str, str]


def inspect(path: Path) -> Inspection:
    """Summarize a model; `StageError` when it is not an ONNX model, or cannot be read within the limits."""
    refuse_wrong_file(path)
    size = path.stat().st_size
    timeout_s, memory = TIMEOUT_S + size // 10_000_000, MEMORY_BYTES + 4 * size
    try:
        return run_in_subprocess(_read, path, timeout_s=timeout_s, memory_bytes=memory).value
    except SubprocessFailed as error:
        raise StageError(f"{path.name}: reading the model failed: {error}") from error


def _read(path: Path) -> Inspection:
    proto = read_untrusted_graph(path)
    rows = layers(proto)
    return Inspection(
        model=path.name,
        graph_name=proto.graph.name,
        size_bytes=path.stat().st_size,
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        ir_version=proto.ir_version,
        opsets=opset_versions(proto),
        inputs={i.name: format_type(i) for i in required_inputs(proto.graph)},
        outputs={o.name: format_type(o) for o in proto.graph.output},
        parameters=sum(row.parameters for row in rows),
        weights_bytes=sum(row.weights_bytes for row in rows),
        macs=sum(row.macs or 0 for row in rows),
        nodes_of_unknown_macs=sum(row.macs is None for row in rows),
        operators=by_operator(rows),
        layers=tuple(row for row in rows if row.weights_bytes or row.macs != 0),
        graph=tuple(listing(proto)),
        signature=Signature.find(proto),
        metadata={p.key: p.value for p in proto.metadata_props if p.key != "gauntlet.signature"},
    )


MAX_LINES = 20_000
MAX_DEPTH = 20


def listing(proto: onnx.ModelProto) -> Iterator[str]:
    """Yield one line per node; nodes of branches and loops are indented below their parent."""
    lines = _lines(proto.graph, inferred_shapes(proto), 0)
    yield from islice(lines, MAX_LINES)
    if next(lines, None) is not None:
        yield "..."


def _lines(graph: onnx.GraphProto, shapes: dict[str, Shape], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for node in graph.node:
        results = ", ".join(f"{name} {format_shape(shapes.get(name))}" for name in node.output if name)
        facts = [f"{a.name}={text}" for a in node.attribute if (text := _text(a))]
        call = f"{operator_name(node)}({', '.join(name or '-' for name in node.input)})"
        yield indent + one_line(f"{results} = {call}" + (f" {{{', '.join(facts)}}}" if facts else ""))
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                if body.node and depth < MAX_DEPTH:
                    yield f"{indent}  {one_line(attribute.name)}:"
                    inner = {v.name: s for v in (*body.value_info, *body.output) if (s := tensor_shape(v)) is not None}
                    yield from _lines(body, shapes | inner, depth + 2)


def _text(attribute: onnx.AttributeProto) -> str:
    """Return an attribute's value as text, or '' where it is long."""
    texts = {
        onnx.AttributeProto.INT: str(attribute.i),
        onnx.AttributeProto.FLOAT: f"{attribute.f:.4g}",
        onnx.AttributeProto.STRING: attribute.s.decode(errors="replace")[:40],
        onnx.AttributeProto.INTS: str(list(attribute.ints)).replace(" ", "") if len(attribute.ints) <= 8 else "",
    }
    return texts.get(attribute.type, "")
