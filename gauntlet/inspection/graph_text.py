"""A graph as text: one line per node, with the shapes of its outputs."""

from collections.abc import Iterator

import onnx

from gauntlet.onnx_model.graph import Shape, format_shape, inferred_shapes, one_line, tensor_shape

MAX_LINES = 20_000
MAX_DEPTH = 20


def listing(proto: onnx.ModelProto) -> Iterator[str]:
    """Yield one line per node; nodes of branches and loops are indented below their parent."""
    shapes = inferred_shapes(proto)
    for number, line in enumerate(_lines(proto.graph, shapes, 0)):
        if number == MAX_LINES:
            yield "..."
            return
        yield line


def _lines(graph: onnx.GraphProto, shapes: dict[str, Shape], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for node in graph.node:
        results = ", ".join(f"{name} {format_shape(shapes.get(name))}" for name in node.output if name)
        operator = f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        facts = [f"{a.name}={text}" for a in node.attribute if (text := _text(a))]
        call = f"{operator}({', '.join(name or '-' for name in node.input)})"
        yield indent + one_line(f"{results} = {call}" + (f" {{{', '.join(facts)}}}" if facts else ""))
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                if body.node and depth < MAX_DEPTH:
                    yield f"{indent}  {one_line(attribute.name)}:"
                    inner = {
                        v.name: shape
                        for v in (*body.value_info, *body.output)
                        if (shape := tensor_shape(v)) is not None
                    }
                    yield from _lines(body, shapes | inner, depth + 2)


def _text(attribute: onnx.AttributeProto) -> str:
    """Return an attribute's value as text, or '' where it is long."""
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
