"""Whether two graphs are the same, whatever their nodes and tensors are called."""

import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from onnx import numpy_helper

from tasks.runtime.session import open_session


def runs_as(model: Path) -> str:
    """Return the digest of the graph that the runtime makes of a model, without the values of its weights."""
    with TemporaryDirectory() as folder:
        optimised = Path(folder) / "optimised.onnx"
        open_session(model, save_to=optimised)
        return fingerprint(onnx.load(optimised, load_external_data=False), weights=False)


def fingerprint(proto: onnx.ModelProto, *, weights: bool = True) -> str:
    """Return the digest of what a graph computes, whatever its nodes and tensors are called and in whatever order.

    Args:
        proto: the model, with its weights.
        weights: whether their values count, or only their types and shapes.
    """
    return _graph(proto.graph, {}, weights=weights)


def _graph(graph: onnx.GraphProto, outer: dict[str, str], *, weights: bool) -> str:
    """Return the digest of a graph; a tensor is known by all that it is computed from."""
    known = dict(outer)
    known |= {tensor.name: _content(tensor, weights=weights) for tensor in graph.initializer}
    for value in graph.input:
        known.setdefault(value.name, f"{value.name} {value.type.tensor_type.elem_type}")
    computed = []
    for node in graph.node:
        attributes = [_attribute(a, known, weights=weights) for a in sorted(node.attribute, key=lambda a: a.name)]
        made = _digest([node.domain, node.op_type, *(known.get(name, "") for name in node.input), "|", *attributes])
        known |= {name: f"{made} {place}" for place, name in enumerate(node.output) if name}
        computed.append(made)
    return _digest([*sorted(computed), "|", *(known.get(value.name, "") for value in graph.output)])


def _attribute(attribute: onnx.AttributeProto, known: dict[str, str], *, weights: bool) -> str:
    if attribute.type == onnx.AttributeProto.TENSOR:
        return f"{attribute.name} {_content(attribute.t, weights=weights)}"
    if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
        bodies = [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs
        return f"{attribute.name} {[_graph(body, known, weights=weights) for body in bodies]}"
    bare = onnx.AttributeProto()
    bare.CopyFrom(attribute)
    bare.doc_string = ""
    text: str = bare.SerializeToString(deterministic=True).hex()
    return text


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _content(tensor: onnx.TensorProto, *, weights: bool) -> str:
    told = f"{tensor.data_type} {list(tensor.dims)}"
    if not weights:
        return told
    if tensor.data_type == onnx.TensorProto.STRING:
        return f"{told} {list(tensor.string_data)}"
    return f"{told} {hashlib.sha256(numpy_helper.to_array(tensor).tobytes()).hexdigest()}"
