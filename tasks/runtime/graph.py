"""Reading a graph: its nodes, inputs, types and shapes, without its weights."""

import re
from collections.abc import Iterator
from pathlib import Path

import onnx

from tasks.errors import StageError

Axis = int | str | None
Axes = tuple[Axis, ...]
"""A shape: numbers, names of dynamic axes, and None where nothing is known."""

RUNTIME_NOISE = (
    (re.compile(r"\[ONNXRuntimeError\] : \d+ : (?!NOT_IMPLEMENTED)\w+ : "), ""),
    (
        re.compile(r"Non-zero status code returned while running (\w+) node\. Name:'([^']*)' Status Message: "),
        r"\1 '\2': ",
    ),
    (re.compile(r"/onnxruntime_src/\S+ [^()]*\([^()]*\)( const)? "), ""),
)
"""Where in its own source the runtime noticed it helps nobody here."""
MAX_TEXT = 400
SMALL_BYTES = 1024


def read_graph(path: Path) -> onnx.ModelProto:
    """Return the model without its external data.

    Raises:
        StageError: when the file is no ONNX model.
    """
    try:
        proto = onnx.load(path, load_external_data=False)
    except MemoryError:
        raise
    except Exception as error:  # protobuf's and Python's own types, and no common base
        raise StageError(f"{path.name}: not a readable ONNX model ({one_line(error)})") from error
    if any(isinstance(text, bytes) for text in _texts(proto)):
        raise StageError(f"{path.name}: not a readable ONNX model: a name in it is not text (UTF-8)")
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise StageError(f"{path.name}: not an ONNX model: it holds no graph")
    return proto


def _texts(proto: onnx.ModelProto) -> Iterator[str | bytes]:
    """Yield the names in a model; protobuf gives bytes for those that are no text, whatever their type says."""
    yield from (proto.producer_name, proto.producer_version, proto.domain, *(o.domain for o in proto.opset_import))
    for entry in proto.metadata_props:
        yield from (entry.key, entry.value)
    bodies = [proto.graph]
    for function in proto.functions:
        yield from (function.domain, function.name, *function.input, *function.output)
    for node in (n for function in proto.functions for n in function.node):
        yield from (node.op_type, node.domain, node.name, *node.input, *node.output)
    while bodies:
        graph = bodies.pop()
        yield graph.name
        for value in (*graph.input, *graph.output, *graph.value_info):
            yield from (value.name, *(dim.dim_param for dim in value.type.tensor_type.shape.dim))
        for tensor in graph.initializer:
            yield tensor.name
            for entry in tensor.external_data:
                yield from (entry.key, entry.value)
        for node in graph.node:
            yield from (node.op_type, node.domain, node.name, *node.input, *node.output)
            for attribute in node.attribute:
                yield attribute.name
                bodies += [attribute.g, *attribute.graphs]


def one_line(text: object) -> str:
    """Return what a library said as one line of bounded length."""
    line = " ".join(str(text).split())
    for noise, instead in RUNTIME_NOISE:
        line = noise.sub(instead, line)
    return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 4]} ..."


def nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield every node, those of If, Loop and Scan bodies included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from nodes(body)


def label(node: onnx.NodeProto) -> str:
    """Return how a message names a node: its type, and its name or what it computes."""
    return f"{node.op_type} '{node.name or next(iter(node.output), '')}'"


def required_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that a caller must give: those without a default value."""
    defaults = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    return [i for i in graph.input if i.name not in defaults]


def opsets(proto: onnx.ModelProto) -> dict[str, int]:
    """Return the operator sets by domain; the standard's own is `ai.onnx`."""
    return {o.domain or "ai.onnx": o.version for o in proto.opset_import}


def axes(value: onnx.ValueInfoProto) -> Axes | None:
    """Return a tensor's shape, or None where not even its rank is known."""
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
        return None
    return tuple(_axis(dim) for dim in value.type.tensor_type.shape.dim)


def _axis(dim: onnx.TensorShapeProto.Dimension) -> Axis:
    # Some exporters write -1 for an axis of any length.
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param or None


def known_axes(proto: onnx.ModelProto, *, through_values: bool = False) -> dict[str, Axes]:
    """Return the shapes of all tensors that the file stores or that ONNX's shape inference finds.

    Args:
        proto: the model; its weights are not needed.
        through_values: also follow the values of shapes that are computed in the graph.
    """
    graph = onnx.shape_inference.infer_shapes(skeleton(proto), data_prop=through_values).graph
    found = {v.name: axes(v) for v in (*graph.value_info, *graph.output, *graph.input)}
    found |= {t.name: tuple(t.dims) for t in graph.initializer}
    return {name: shape for name, shape in found.items() if shape is not None}


def skeleton(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy without the values of its weights, which shape inference copies and never reads."""
    bare = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    graph = proto.graph
    bare.graph.name = graph.name
    for copied in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(bare.graph, copied).extend(getattr(graph, copied))
    for tensor in graph.initializer:
        if tensor.ByteSize() < SMALL_BYTES:  # it might be a shape
            bare.graph.initializer.append(tensor)
        else:
            bare.graph.initializer.add(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
    return bare


def text_of_axes(shape: Axes | None) -> str:
    """Write a shape: `[batch, 3, ?]`; `[...]` where not even the rank is known."""
    return "[...]" if shape is None else f"[{', '.join('?' if axis is None else str(axis) for axis in shape)}]"


def text_of_type(value: onnx.ValueInfoProto) -> str:
    """Write a value's type and shape: `float[batch, 3, 32, 32]`."""
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        return str(value.type.WhichOneof("value") or "unknown").removesuffix("_type")
    known = kind.elem_type in onnx.TensorProto.DataType.values()
    name = onnx.TensorProto.DataType.Name(kind.elem_type).lower() if known else f"type {kind.elem_type}"
    return name + text_of_axes(axes(value))
