"""Whether two graphs are the same, whatever their nodes and tensors are called."""

import hashlib
from collections.abc import Iterator
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
        return fingerprint(onnx.load(optimised), weights=False)


def fingerprint(proto: onnx.ModelProto, *, weights: bool = True) -> str:
    """Return the digest of what a graph computes, whatever its nodes and tensors are called.

    Args:
        proto: the model, with its weights.
        weights: whether their values count, or only their types and shapes.
    """
    digest = hashlib.sha256()
    for part in _parts(proto.graph, {}, weights=weights):
        digest.update(part)
        digest.update(b"\0")
    return digest.hexdigest()


def _parts(graph: onnx.GraphProto, outer: dict[str, str], *, weights: bool) -> Iterator[bytes]:
    """Yield the graph piece by piece; a tensor is known by its place in the computation, a weight by its content."""
    known = dict(outer)
    known |= {tensor.name: _content(tensor, weights=weights) for tensor in graph.initializer}
    for value in graph.input:
        known.setdefault(value.name, f"{value.name} {value.type.tensor_type.elem_type}")
    for node in graph.node:
        yield f"{node.domain} {node.op_type} {[known.get(name, '') for name in node.input]}".encode()
        for attribute in sorted(node.attribute, key=lambda a: a.name):
            yield attribute.name.encode()
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield _content(attribute.t, weights=weights).encode()
            elif attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
                for body in (attribute.g, *attribute.graphs):
                    yield from _parts(body, known, weights=weights)
            else:
                bare = onnx.AttributeProto()
                bare.CopyFrom(attribute)
                bare.doc_string = ""
                yield bare.SerializeToString(deterministic=True)
        for name in node.output:
            known[name] = f"#{len(known)}" if name else ""
    yield str([known.get(value.name) for value in graph.output]).encode()


def _content(tensor: onnx.TensorProto, *, weights: bool) -> str:
    told = f"{tensor.data_type} {list(tensor.dims)}"
    if not weights:
        return told
    if tensor.data_type == onnx.TensorProto.STRING:
        return f"{told} {list(tensor.string_data)}"
    return f"{told} {hashlib.sha256(numpy_helper.to_array(tensor).tobytes()).hexdigest()}"
