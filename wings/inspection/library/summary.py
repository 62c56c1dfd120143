"""Summarize a model file: read in a child process, without its external data, and without running it."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import onnx
from pydantic import Field

from gauntlet.core.errors import StageError, one_line
from gauntlet.core.frozen import Frozen
from gauntlet.core.signature import Signature
from gauntlet.onnx_model.graph import (
    Shape,
    format_shape,
    format_type,
    inferred_shapes,
    operator_name,
    opset_versions,
    read_untrusted_graph,
    required_inputs,
    tensor_shape,
)
from gauntlet.runtime.subprocess_runner import SubprocessFailed, run_in_subprocess
from wings.inspection.library import refuse_wrong_file
from wings.inspection.library.layers import Layer, OperatorRow, by_operator, layers

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
