"""Fingerprints of graphs, independent of the names of nodes and tensors."""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from gauntlet.onnx_model.model_file import read_graph
from gauntlet.runtime.session import open_session

Content = Callable[[onnx.TensorProto], str]


def optimized_graph_fingerprint(model: Path) -> str:
    """Return the digest of the runtime's optimized graph of a model, without the values of its weights."""
    with TemporaryDirectory() as folder:
        optimized = Path(folder) / "optimized.onnx"
        open_session(model, save_to=optimized)
        return graph_fingerprint(read_graph(optimized), weights=False)


def graph_fingerprint(proto: onnx.ModelProto, folder: Path | None = None, *, weights: bool = True) -> str:
    """Return the digest of what a graph computes, independent of the names and the order of its nodes.

    A weight that is an input too is told apart from a constant: a caller may replace it, so a runtime cannot fold it or
    prepare it for its kernels. Weights that were not loaded are read from `folder`; without `weights`, only their types
    and shapes count, and the values of int64 tensors that were loaded, which are shapes, axes and indices.
    """

    def content(tensor: onnx.TensorProto) -> str:
        kind = f"{tensor.data_type} {list(tensor.dims)}"
        index = tensor.data_type == onnx.TensorProto.INT64 and not uses_external_data(tensor)
        return f"{kind} {_values(tensor, folder)}" if weights or index else kind

    return _graph(proto.graph, {}, content)


def _graph(graph: onnx.GraphProto, outer: dict[str, str], content: Content) -> str:
    """Return the digest of a graph; a tensor is identified by all that it is computed from."""
    known = dict(outer)
    inputs = {value.name for value in graph.input}
    for tensor in graph.initializer:
        known[tensor.name] = content(tensor) + (" replaceable" if tensor.name in inputs else "")
    for value in graph.input:
        known.setdefault(value.name, f"{value.name} {value.type.tensor_type.elem_type}")
    computed = []
    for node in graph.node:
        attributes = [_attribute(a, known, content) for a in sorted(node.attribute, key=lambda a: a.name)]
        digest = _digest([node.domain, node.op_type, *(known.get(name, "") for name in node.input), "|", *attributes])
        known |= {name: f"{digest} {index}" for index, name in enumerate(node.output) if name}
        computed.append(digest)
    return _digest([*sorted(computed), "|", *(known.get(value.name, "") for value in graph.output)])


def _attribute(attribute: onnx.AttributeProto, known: dict[str, str], content: Content) -> str:
    if attribute.type == onnx.AttributeProto.TENSOR:
        return f"{attribute.name} {content(attribute.t)}"
    if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
        bodies = [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs
        return f"{attribute.name} {[_graph(body, known, content) for body in bodies]}"
    bare = onnx.AttributeProto()
    bare.CopyFrom(attribute)
    bare.doc_string = ""
    return str(bare.SerializeToString(deterministic=True).hex())


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _values(tensor: onnx.TensorProto, folder: Path | None) -> str:
    if tensor.data_type == onnx.TensorProto.STRING:
        return f"{list(tensor.string_data)}"
    if folder is None or not uses_external_data(tensor):
        return hashlib.sha256(numpy_helper.to_array(tensor).tobytes()).hexdigest()
    info = ExternalDataInfo(tensor)
    file = folder / info.location
    return _external_digest(file, file.stat().st_mtime_ns, info.offset or 0, info.length)


@cache  # a chain of passes asks for the same weights after each pass
def _external_digest(file: Path, changed_ns: int, offset: int, length: int | None) -> str:
    return hashlib.sha256(np.memmap(file, np.uint8, "r", offset, length).data).hexdigest()
