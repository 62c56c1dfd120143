"""A model's penultimate outputs as one more output: what its last layer with weights takes, as a few numbers a sample.

The input of that layer is averaged over places (the sides of a feature map, the tokens of a sequence), and projected
to `VALUES` dimensions by a matrix of random signs, which keeps distances well (Achlioptas, Database-friendly random
projections, Journal of Computer and System Sciences 66, 2003). The signs come from a hash, so they are the same in
every version of NumPy. All of it is in the graph: one call computes it with the model's own outputs.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gauntlet.core.arrays import Array
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.onnx_model.graph import Shape, inferred_shapes, node_label

EMBEDDING = "gauntlet_embedding"
"""Name of the output, shape (n, k) with k of at most `VALUES`."""
VALUES = 32
CONVOLUTIONS = ("Conv", "ConvInteger", "ConvTranspose", "FusedConv", "QLinearConv")
GEMMS = ("FusedGemm", "Gemm", "QGemm")
PRODUCTS = ("DynamicQuantizeMatMul", "FusedMatMul", "MatMul", "MatMulInteger", "MatMulIntegerToFloat", "QLinearMatMul")
WITH_SCALES = ("QGemm", "QLinearConv", "QLinearMatMul")
"""Their inputs are: what they take, its scale and its zero point, then the weights."""


class NoEmbedding(StageError):  # noqa: N818 - what the model lacks, not what went wrong
    """A model has no penultimate output that can be watched; the message says why."""


class EmbeddingOutput(Frozen):
    """Where a model's penultimate outputs are in its graph."""

    layer: str
    """The last layer with weights, as messages name it."""
    tensor: str
    """What it takes; where that is quantized, its integers."""
    size: int
    """Channels, or features."""
    channels_first: bool
    """Whether the channels are the second axis; else they are the last one."""
    scale: str = ""
    """Of the integers; empty where `tensor` has floats."""
    zero_point: str = ""

    @property
    def values(self) -> int:
        """Numbers of a sample's embedding."""
        return min(self.size, VALUES)


def find_embedding(proto: onnx.ModelProto, primary_output: str) -> EmbeddingOutput:
    """Return where the penultimate outputs are: the input of the last layer with weights before the primary output.

    Raises:
        NoEmbedding: when there is no such layer, or its size is not known.
    """
    graph = proto.graph
    fixed, made_by = _fixed_tensors(graph), {name: node for node in graph.node for name in node.output if name}
    if EMBEDDING in made_by:
        raise NoEmbedding(f"the model has a tensor named {EMBEDDING!r} already")
    pending, seen, layers = [primary_output], set[str](), list[onnx.NodeProto]()
    while pending:
        name = pending.pop()
        node = made_by.get(name)
        if node is None or name in seen:
            continue
        seen.update(node.output)
        if _has_weights(node, fixed):
            layers.append(node)
        else:
            pending += node.input
    if not layers:
        raise NoEmbedding(f"no convolution or matrix product with weights is before the output '{primary_output}'")
    places = {node.output[0]: place for place, node in enumerate(graph.node) if node.output}
    last = max(layers, key=lambda node: places[node.output[0]])
    return _embedding_of(last, made_by, inferred_shapes(proto))


def with_embedding(proto: onnx.ModelProto, output: EmbeddingOutput) -> onnx.ModelProto:
    """Return a copy of the model with the embedding as its last output; its external data stays where it is."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    graph, source = changed.graph, output.tensor
    if output.scale:  # a node of its own: the runtime fuses the model's with what follows it
        inputs = [source, output.scale, *([output.zero_point] if output.zero_point else [])]
        source = _append(graph, "DequantizeLinear", inputs, "dequantized")
    source = _append(graph, "Cast", [source], "floats", to=TensorProto.FLOAT)
    if output.channels_first:
        pooled = _append(graph, "GlobalAveragePool", [source], "pooled")
        rows = _append(graph, "Flatten", [pooled], "rows", axis=1)
    else:
        rows = _mean_of_places(changed, source, output.size)
    if output.size > VALUES:
        rows = _append(graph, "MatMul", [rows, _constant(graph, "signs", projection(output.size))], "projected")
    graph.node.append(helper.make_node("Identity", [rows], [EMBEDDING], name=EMBEDDING))
    graph.output.append(helper.make_tensor_value_info(EMBEDDING, TensorProto.FLOAT, [None, output.values]))
    return changed


def projection(size: int) -> Array:
    """Return the matrix of signs over the square root of `VALUES`, shape (size, VALUES)."""
    stream = hashlib.shake_256(f"onnx-gauntlet embedding {size}".encode()).digest(-(-size * VALUES // 8))
    bits = np.unpackbits(np.frombuffer(stream, np.uint8))[: size * VALUES].reshape(size, VALUES)
    return np.asarray((2.0 * bits - 1) / np.sqrt(VALUES), np.float32)


def _fixed_tensors(graph: onnx.GraphProto) -> set[str]:
    """Return the tensors that depend on no input, such as weights that are dequantized."""
    inputs = {value.name for value in graph.input}
    fixed = {tensor.name for tensor in graph.initializer} | {sparse.values.name for sparse in graph.sparse_initializer}
    fixed -= inputs  # defaults of inputs, which a caller may replace
    for node in graph.node:  # in the order of computation
        has_body = any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)
        if not has_body and all(name in fixed for name in node.input if name):
            fixed.update(node.output)
    return fixed


def _has_weights(node: onnx.NodeProto, fixed: set[str]) -> bool:
    """Return whether a node multiplies what it takes first by weights, with the channels where they are expected."""
    if node.op_type not in (*CONVOLUTIONS, *GEMMS, *PRODUCTS):
        return False
    place = _weights_at(node)
    moved = any(_integer(node, name) for name in ("transA", "transBatchA", "channels_last"))
    return not moved and len(node.input) > place and node.input[place] in fixed and node.input[0] not in fixed


def _weights_at(node: onnx.NodeProto) -> int:
    return 3 if node.op_type in WITH_SCALES else 1


def _embedding_of(
    node: onnx.NodeProto, made_by: Mapping[str, onnx.NodeProto], shapes: Mapping[str, Shape]
) -> EmbeddingOutput:
    shape = shapes.get(node.input[_weights_at(node)], ())
    size = _channels(node, shape) if len(shape) >= 2 else None
    if not isinstance(size, int) or size < 1:
        raise NoEmbedding(f"the size of what {node_label(node)} takes is not known")
    tensor, scale, zero_point = _source(node, made_by)
    first = node.op_type in CONVOLUTIONS
    return EmbeddingOutput(
        layer=node_label(node), tensor=tensor, size=size, channels_first=first, scale=scale, zero_point=zero_point
    )


def _source(node: onnx.NodeProto, made_by: Mapping[str, onnx.NodeProto]) -> tuple[str, str, str]:
    """Return the tensor that a node takes, and the scale and zero point of integers."""
    taken, maker = node.input[0], made_by.get(node.input[0])
    if node.op_type in WITH_SCALES:
        return taken, node.input[1], node.input[2]
    if maker is not None and maker.op_type == "DequantizeLinear":
        return maker.input[0], maker.input[1], maker.input[2] if len(maker.input) > 2 else ""
    if maker is not None and maker.op_type == "DynamicQuantizeLinear":
        return maker.input[0], "", ""
    return taken, "", ""


def _channels(node: onnx.NodeProto, shape: Shape) -> object:
    """Return the number of channels that a layer takes, by the shape of its weights."""
    if node.op_type in CONVOLUTIONS:
        groups = _integer(node, "group") or 1
        of_group = shape[1]
        if node.op_type == "ConvTranspose":
            return shape[0]
        return of_group * groups if isinstance(of_group, int) else None
    return shape[-1] if _integer(node, "transB") else shape[-2]


def _mean_of_places(proto: onnx.ModelProto, source: str, size: int) -> str:
    """Add the mean over all axes but the first and the last; return its name."""
    graph = proto.graph
    shape = _constant(graph, "places", np.array([0, -1, size], np.int64))
    places = _append(graph, "Reshape", [source, shape], "by_place")
    version = next((opset.version for opset in proto.opset_import if opset.domain in ("", "ai.onnx")), 0)
    if version < 18:
        return _append(graph, "ReduceMean", [places], "rows", axes=[1], keepdims=0)
    axes = _constant(graph, "axes", np.array([1], np.int64))
    return _append(graph, "ReduceMean", [places, axes], "rows", keepdims=0)


def _append(graph: onnx.GraphProto, kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
    output = f"{EMBEDDING}/{name}"
    graph.node.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
    return output


def _constant(graph: onnx.GraphProto, name: str, values: Array) -> str:
    graph.initializer.append(numpy_helper.from_array(values, f"{EMBEDDING}/{name}"))
    return f"{EMBEDDING}/{name}"


def _integer(node: onnx.NodeProto, name: str) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == name), 0)
