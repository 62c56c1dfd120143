"""A graph as a person reads it: a line a node, with the shape of what it computes."""

from collections.abc import Iterator

import onnx

from tasks.runtime.graph import Axes, axes, known_axes, one_line, text_of_axes

MAX_LINES = 20_000
MAX_DEPTH = 20


def listing(proto: onnx.ModelProto) -> Iterator[str]:
    """Yield the lines; the nodes of branches and loops are indented below their own."""
    shapes = known_axes(proto)
    for number, line in enumerate(_lines(proto.graph, shapes, 0)):
        if number == MAX_LINES:
            yield "..."
            return
        yield line


def _lines(graph: onnx.GraphProto, shapes: dict[str, Axes], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for node in graph.node:
        results = ", ".join(f"{name} {text_of_axes(shapes.get(name))}" for name in node.output if name)
        operator = f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        facts = [f"{a.name}={text}" for a in node.attribute if (text := _text(a))]
        call = f"{operator}({', '.join(name or '-' for name in node.input)})"
        yield indent + one_line(f"{results} = {call}" + (f" {{{', '.join(facts)}}}" if facts else ""))
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                if body.node and depth < MAX_DEPTH:
                    yield f"{indent}  {one_line(attribute.name)}:"
                    inner = {v.name: shape for v in (*body.value_info, *body.output) if (shape := axes(v)) is not None}
                    yield from _lines(body, shapes | inner, depth + 2)


def _text(attribute: onnx.AttributeProto) -> str:
    """Return an attribute's value where it is short."""
    kinds = onnx.AttributeProto
    if attribute.type == kinds.INT:
        return str(attribute.i)
    if attribute.type == kinds.FLOAT:
        return f"{attribute.f:.4g}"
    if attribute.type == kinds.STRING:
        return attribute.s.decode(errors="replace")[:40]
    if attribute.type == kinds.INTS and len(attribute.ints) <= 8:
        return str(list(attribute.ints)).replace(" ", "")
    return ""
