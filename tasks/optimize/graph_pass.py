"""One pass on one file, and whether it changed anything."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import onnx
from onnx import numpy_helper
from pydantic import Field

from tasks.model_file import write_model
from tasks.optimize.onnxoptimizer import OnnxOptimizer
from tasks.optimize.onnxscript import OnnxScript, OnnxScriptRewriter
from tasks.optimize.onnxsim import OnnxSim
from tasks.optimize.onnxslim import OnnxSlim
from tasks.optimize.ort import OrtGraph
from tasks.optimize.own import OwnPass
from tasks.runtime.session import supported_ir_version

GraphPass = Annotated[
    OrtGraph | OnnxOptimizer | OnnxSim | OnnxSlim | OnnxScript | OnnxScriptRewriter | OwnPass,
    Field(discriminator="kind"),
]

LAYOUT_DOMAINS = {"com.microsoft.nchwc", "com.ms.internal.nhwc"}
"""Operators in a layout that ONNX Runtime chose for the processor of this machine."""


def apply_pass(graph_pass: GraphPass, source: Path, target: Path) -> onnx.ModelProto:
    """Apply a pass to a copy; return what is in `target` then. What the model says of itself stays, signature included.

    It raises what the pass raises.
    """
    graph_pass.apply(source, target)
    before, after = onnx.load(source, load_external_data=False), onnx.load(target)
    told = {entry.key: entry.value for model in (after, before) for entry in model.metadata_props}
    onnx.helper.set_model_props(after, told)
    after.ir_version = min(after.ir_version, supported_ir_version())
    write_model(after, target)
    return after


def halves(graph_pass: GraphPass) -> tuple[GraphPass, ...]:
    """Return the two halves of a group of passes; none for what cannot be taken apart."""
    return graph_pass.halves() if isinstance(graph_pass, OnnxOptimizer | OnnxScriptRewriter) else ()


def layout_nodes(proto: onnx.ModelProto) -> int:
    """Return how many nodes are laid out for one processor."""
    return sum(node.domain in LAYOUT_DOMAINS for node in proto.graph.node)


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
