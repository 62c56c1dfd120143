"""Where a model's penultimate outputs are: what its last layer with weights takes."""

from collections.abc import Mapping

import onnx

from gauntlet.onnx_model.graph import Shape, inferred_shapes, node_label
from gauntlet.request_log.log_format import EMBEDDING
from wings.lifecycle.library.monitoring.embedding_output import EmbeddingOutput, NoEmbedding

CONVOLUTIONS = ("Conv", "ConvInteger", "ConvTranspose", "FusedConv", "QLinearConv")
GEMMS = ("FusedGemm", "Gemm", "QGemm")
PRODUCTS = ("DynamicQuantizeMatMul", "FusedMatMul", "MatMul", "MatMulInteger", "MatMulIntegerToFloat", "QLinearMatMul")
WITH_SCALES = ("QGemm", "QLinearConv", "QLinearMatMul")
"""Their inputs are: what they take, its scale and its zero point, then the weights."""


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
    return _embedding_of(max(layers, key=lambda node: places[node.output[0]]), made_by, inferred_shapes(proto))


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


def _integer(node: onnx.NodeProto, name: str) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == name), 0)
