"""Reading a graph: its nodes, inputs, types and shapes, without its weights."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx

from gauntlet.core.errors import StageError
from gauntlet.onnx_model.model_file import bodies

Dim = int | str | None
Shape = tuple[Dim, ...]
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


def read_untrusted_graph(path: Path) -> onnx.ModelProto:
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


def _texts(message: Any) -> Iterator[str | bytes]:
    """Yield the names in a message; protobuf gives bytes for those that are no text, whatever their type says."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING and field.name != "doc_string":
            yield from (value,) if isinstance(value, str | bytes) else value
        elif field.type == field.TYPE_MESSAGE:
            for inner in (value,) if hasattr(value, "ListFields") else value:
                yield from _texts(inner)


def one_line(text: object) -> str:
    """Return what a library said as one line of bounded length."""
    line = " ".join(str(text).split())
    for noise, instead in RUNTIME_NOISE:
        line = noise.sub(instead, line)
    return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 4]} ..."


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield every node, those of If, Loop and Scan bodies included."""
    for node in graph.node:
        yield node
        for body in bodies(node):
            yield from all_nodes(body)


def node_label(node: onnx.NodeProto) -> str:
    """Return how a message names a node: its type, and its name or what it computes."""
    return f"{node.op_type} '{node.name or next(iter(node.output), '')}'"


def required_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that a caller must give: those without a default value."""
    defaults = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    return [i for i in graph.input if i.name not in defaults]


def opset_versions(proto: onnx.ModelProto) -> dict[str, int]:
    """Return the operator sets by domain; the standard's own is `ai.onnx`."""
    return {o.domain or "ai.onnx": o.version for o in proto.opset_import}


def tensor_shape(value: onnx.ValueInfoProto) -> Shape | None:
    """Return a tensor's shape, or None where not even its rank is known."""
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
        return None
    return tuple(_axis(dim) for dim in value.type.tensor_type.shape.dim)


def _axis(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    # Some exporters write -1 for an axis of any length.
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param or None


def inferred_shapes(proto: onnx.ModelProto, *, through_values: bool = False) -> dict[str, Shape]:
    """Return the shapes of all tensors that the file stores or that ONNX's shape inference finds.

    Args:
        proto: the model; its weights are not needed.
        through_values: also follow the values of shapes that are computed in the graph.
    """
    graph = onnx.shape_inference.infer_shapes(without_weights(proto), data_prop=through_values).graph
    found = {v.name: tensor_shape(v) for v in (*graph.value_info, *graph.output, *graph.input)}
    found |= {t.name: tuple(t.dims) for t in graph.initializer}
    return {name: shape for name, shape in found.items() if shape is not None}


def without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
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


def format_shape(shape: Shape | None) -> str:
    """Write a shape: `[batch, 3, ?]`; `[...]` where not even the rank is known."""
    return "[...]" if shape is None else f"[{', '.join('?' if axis is None else str(axis) for axis in shape)}]"


def format_type(value: onnx.ValueInfoProto) -> str:
    """Write a value's type and shape: `float[batch, 3, 32, 32]`."""
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        return str(value.type.WhichOneof("value") or "unknown").removesuffix("_type")
    known = kind.elem_type in onnx.TensorProto.DataType.values()
    name = onnx.TensorProto.DataType.Name(kind.elem_type).lower() if known else f"type {kind.elem_type}"
    return name + format_shape(tensor_shape(value))
