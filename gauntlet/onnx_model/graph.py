"""Read a graph without its weights: nodes, inputs, constants, types and shapes."""

import math
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx
from onnx import helper, numpy_helper

from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.onnx_model.model_file import bodies, read_graph

Dim = int | str | None
Shape = tuple[Dim, ...]
"""Sizes, names of dynamic axes, and None for unknown axes."""

SMALL_BYTES = 1024
NOT_PARAMETERS = {onnx.TensorProto.INT64, onnx.TensorProto.BOOL, onnx.TensorProto.STRING}


def read_untrusted_graph(path: Path) -> onnx.ModelProto:
    """Return the model without its external data; `StageError` when it is damaged, or has no graph."""
    proto = read_graph(path)
    if any(isinstance(text, bytes) for text in _texts(proto)):
        raise StageError(f"{path}: not a readable ONNX model: a name in it is not UTF-8")
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise StageError(f"{path}: not a readable ONNX model: it has no graph. Fix: export it again")
    return proto


def _texts(message: Any) -> Iterator[str | bytes]:
    """Yield the names in a message; protobuf returns invalid UTF-8 as bytes, whatever the field's type."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING and field.name != "doc_string":
            yield from (value,) if isinstance(value, str | bytes) else value
        elif field.type == field.TYPE_MESSAGE:
            for inner in (value,) if hasattr(value, "ListFields") else value:
                yield from _texts(inner)


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield every node, including those in If, Loop and Scan bodies."""
    for node in graph.node:
        yield node
        for body in bodies(node):
            yield from all_nodes(body)


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield the graph and every graph inside it."""
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from all_graphs(body)


def constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return the initializers and the values of Constant nodes by name, including those of inner graphs."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            tensors |= {name: a.t for a in node.attribute if a.name == "value" for name in node.output}
        for body in bodies(node):
            tensors |= constants(body)
    return tensors


def parameter_count(tensors: Iterable[onnx.TensorProto]) -> int:
    """Return how many values stored tensors hold, without those of shapes, indices, masks and texts."""
    return sum(math.prod(tensor.dims) for tensor in tensors if tensor.data_type not in NOT_PARAMETERS)


def int_values(constant: onnx.TensorProto | None) -> list[int]:
    """Return the values of a constant such as a shape or axes; none where there is no constant."""
    return [] if constant is None else [int(value) for value in numpy_helper.to_array(constant).ravel()]


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Return a node's attributes as Python values, without those whose type a damaged file does not tell."""
    known = (attribute for attribute in node.attribute if attribute.type and not attribute.ref_attr_name)
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in known}


def set_attributes(node: onnx.NodeProto, **values: Any) -> None:
    """Give some attributes of a node these values."""
    kept = [attribute for attribute in node.attribute if attribute.name not in values]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(name, value) for name, value in values.items())])


def node_label(node: onnx.NodeProto) -> str:
    """Return a node as messages name it: its type, and its name or its first output."""
    return f"{node.op_type} '{node.name or next(iter(node.output), '')}'"


def operator_name(node: onnx.NodeProto) -> str:
    """Return an operator's type, with the domain of a custom one: `domain::type`."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"


def required_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that a caller must pass: those without a default value."""
    defaults = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    return [i for i in graph.input if i.name not in defaults]


def class_names(graph: onnx.GraphProto | None) -> tuple[str, ...]:
    """Return the texts that a classifier of `ai.onnx.ml` names its classes with, in the order of its scores."""
    attributes = (attribute for node in (graph.node if graph else ()) for attribute in node.attribute)
    texts = (attribute.strings for attribute in attributes if attribute.name == "classlabels_strings")
    return tuple(name.decode() for name in next(texts, ()))


def opset_versions(proto: onnx.ModelProto) -> dict[str, int]:
    """Return the opset versions by domain; the standard's is `ai.onnx`."""
    return {o.domain or "ai.onnx": o.version for o in proto.opset_import}


def import_standard_once(proto: onnx.ModelProto, default: int) -> None:
    """Import each domain exactly once, the standard operators too: converters of `ai.onnx.ml` may not, or twice.

    `default` is the standard's version where it is not imported.
    """
    versions = {"ai.onnx": default} | opset_versions(proto)
    del proto.opset_import[:]
    for domain, version in versions.items():
        proto.opset_import.append(helper.make_opsetid("" if domain == "ai.onnx" else domain, version))


def declare_outputs(proto: onnx.ModelProto) -> None:
    """Give outputs without a shape, which ONNX does not allow and runtimes do, the one that ONNX infers, in place."""
    kinds = ((value.type, value.type.WhichOneof("value")) for value in proto.graph.output)
    if all(kind not in (None, "tensor_type") or declared.tensor_type.HasField("shape") for declared, kind in kinds):
        return
    inferred = onnx.shape_inference.infer_shapes(without_weights(proto)).graph.output
    for value, known in zip(proto.graph.output, inferred, strict=True):
        value.type.CopyFrom(known.type)


def tensor_shape(value: onnx.ValueInfoProto) -> Shape | None:
    """Return a tensor's shape, or None where its rank is unknown."""
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
        return None
    return tuple(  # some exporters write -1 for a dynamic axis
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param or None
        for dim in value.type.tensor_type.shape.dim
    )


def first_axis(value: onnx.ValueInfoProto) -> Dim:
    """Return a tensor's first axis, which is usually the batch; None for a scalar, and where it is unknown."""
    return (tensor_shape(value) or (None,))[0]


def replace_model(proto: onnx.ModelProto, changed: onnx.ModelProto) -> None:
    """Replace a model by a changed one, in place, but keep its metadata and an older IR version."""
    changed.ir_version = min(changed.ir_version, proto.ir_version)
    del changed.metadata_props[:]
    changed.metadata_props.extend(proto.metadata_props)
    proto.CopyFrom(changed)


def inferred_shapes(proto: onnx.ModelProto, *, through_values: bool = False) -> dict[str, Shape]:
    """Return all shapes that the file stores or ONNX infers, also `through_values` that are computed shapes."""
    graph = onnx.shape_inference.infer_shapes(without_weights(proto), data_prop=through_values).graph
    shapes = {v.name: tensor_shape(v) for v in (*graph.value_info, *graph.output, *graph.input)}
    shapes |= {t.name: tuple(t.dims) for t in graph.initializer}
    return {name: shape for name, shape in shapes.items() if shape is not None}


def without_weights(proto: onnx.ModelProto, inline_bytes: int = SMALL_BYTES) -> onnx.ModelProto:
    """Return a copy without the values of its weights, which shape inference would copy and never read.

    Initializers below `inline_bytes` keep theirs, which may be shapes.
    """
    bare = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    graph = proto.graph
    bare.graph.name = graph.name
    for copied in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(bare.graph, copied).extend(getattr(graph, copied))
    for tensor in graph.initializer:
        if tensor.ByteSize() < inline_bytes:
            bare.graph.initializer.append(tensor)
        else:
            bare.graph.initializer.add(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
    return bare


def unused_name(name: str, taken: Container[str]) -> str:
    """Return a name that is not taken: the name itself, or with underscores behind it."""
    while name in taken:
        name += "_"
    return name


def format_shape(shape: Shape | None) -> str:
    """Return a shape as text: `[batch, 3, ?]`; `[...]` where the rank is unknown."""
    return "[...]" if shape is None else f"[{', '.join('?' if axis is None else str(axis) for axis in shape)}]"


def format_type(value: onnx.ValueInfoProto) -> str:
    """Return a value's type and shape as text: `float[batch, 3, 32, 32]`."""
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        return str(value.type.WhichOneof("value") or "unknown").removesuffix("_type")
    known = kind.elem_type in onnx.TensorProto.DataType.values()
    name = onnx.TensorProto.DataType.Name(kind.elem_type).lower() if known else f"type {kind.elem_type}"
    return name + format_shape(tensor_shape(value))


def updated_signature(signature: Signature, before: onnx.GraphProto, after: onnx.GraphProto) -> Signature:
    """Return the signature with the changes of the graph's inputs and outputs: their shapes, and inputs that are gone.

    What did not change in the graph stays as it is in the signature, which is the contract with the callers.
    """
    values = ((*graph.input, *graph.output) for graph in (before, after))
    was, now = ({value.name: tensor_shape(value) for value in each} for each in values)
    changed = {name: shape for name, shape in now.items() if shape != was.get(name)}
    inputs, outputs = (
        tuple(_updated(spec, changed) for spec in specs if spec.name in now or spec.name not in was)
        for specs in (signature.inputs, signature.outputs)
    )
    return signature.replace(inputs=inputs, outputs=outputs)


def _updated(spec: TensorSpec, changed: dict[str, Shape | None]) -> TensorSpec:
    shape = changed.get(spec.name)
    if shape is None or len(shape) != len(spec.shape):
        return spec
    axes = zip(shape, spec.shape, strict=True)
    return spec.replace(shape=tuple(old if new is None else new for new, old in axes))
