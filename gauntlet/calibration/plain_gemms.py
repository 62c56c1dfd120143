"""Gemm nodes in the one form that ONNX Runtime's quantizer computes right: alpha and beta 1, and a bias vector.

Of another form, it divides by a beta of 0, drops any other beta, and fails on a bias that is a scalar or a matrix.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gauntlet.core.arrays import Array
from gauntlet.onnx_model.graph import unused_name

FACTORS = ("alpha", "beta")


def make_gemms_plain(graph: onnx.GraphProto) -> None:
    """Fold factors into stored weights and biases, store each bias as a vector, and add a matrix by a node of its own.

    Computed weights keep their factor, and computed biases stay as they are.
    """
    stored = {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.data_location != TensorProto.EXTERNAL and tensor.data_type == TensorProto.FLOAT
    }
    taken = {value.name for value in (*graph.initializer, *graph.input)}
    taken.update(name for node in graph.node for name in (*node.output, node.name))
    for node in [node for node in graph.node if node.op_type == "Gemm" and node.domain in ("", "ai.onnx")]:
        alpha, beta = (next((a.f for a in node.attribute if a.name == name), 1.0) for name in FACTORS)
        weights, bias = node.input[1], node.input[2] if len(node.input) > 2 and beta else ""
        if alpha != 1 and weights in stored:
            node.input[1] = _store(graph, weights, np.multiply(numpy_helper.to_array(stored[weights]), alpha), taken)
            _set_factor(node, "alpha")
        if not bias:
            del node.input[2:]
            _set_factor(node, "beta")
        elif bias in stored:
            before = numpy_helper.to_array(stored[bias])
            after = np.multiply(_vector(before, _columns(node, stored.get(weights))), beta)
            if beta != 1 or after.shape != before.shape:
                node.input[2] = _store(graph, bias, after, taken)
                _set_factor(node, "beta")
            if after.ndim == 2:
                _add_separately(graph, node, taken)


def _store(graph: onnx.GraphProto, original: str, values: Array, taken: set[str]) -> str:
    name = unused_name(f"{original}/plain", taken)
    taken.add(name)
    graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    return name


def _add_separately(graph: onnx.GraphProto, node: onnx.NodeProto, taken: set[str]) -> None:
    """Take the bias out of a Gemm; a node behind it adds it."""
    output, product = node.output[0], unused_name(f"{node.output[0]}/product", taken)
    adding = helper.make_node("Add", [product, node.input[2]], [output], name=unused_name(f"{node.name}/bias", taken))
    taken.update((product, adding.name))
    node.output[0] = product
    del node.input[2:]
    graph.node.insert(list(graph.node).index(node) + 1, adding)


def _columns(node: onnx.NodeProto, weights: onnx.TensorProto | None) -> int | None:
    transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    return weights.dims[0 if transposed else 1] if weights else None


def _vector(bias: Array, columns: int | None) -> Array:
    """Return a scalar, or a bias of one row, with one entry a column of the product; others as they are."""
    if columns is None or bias.size not in (1, columns) or (bias.size > 1 and bias.shape[-1] == 1):
        return bias
    return np.broadcast_to(bias.reshape(-1), (columns,))


def _set_factor(node: onnx.NodeProto, name: str) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, 1.0)])
