"""A graph as text: one line per node, with the shapes of its outputs."""

from collections.abc import Iterator
from itertools import islice

import onnx

from gauntlet.core.errors import one_line
from gauntlet.onnx_model.graph import Shape, format_shape, inferred_shapes, operator_name, tensor_shape

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
