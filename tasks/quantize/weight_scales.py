"""Weight scales at which no 16-bit sum of two products overflows on a processor without VNNI.

There, ONNX Runtime's kernels (QgemmU8S8KernelAvx2.S and its like) add the products of two neighbors along the summed
axis in an int16. ONNX Runtime's `reduce_range` halves every weight. Only an output channel in which two neighbors of
one sign are large together needs a coarser scale, and a depthwise convolution, whose kernel does not add pairs, none.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from gauntlet.core.arrays import Array

LARGEST = 127
"""Of a weight, and of the sum of two neighbors: rounding may add 1, and 255 * 128 is below 32767."""


def scales_without_overflow(graph: onnx.GraphProto, *, per_channel: bool) -> dict[str, list[dict[str, Any]]]:
    """Return `TensorQuantOverrides` of ONNX Runtime's quantizer for the weights of products, by initializer.

    A weight that several nodes use has the coarsest of their scales, and none here if their output channels differ.
    """
    stored, uses = {tensor.name: tensor for tensor in graph.initializer}, dict[str, list[tuple[int, Array]]]()
    for node, axis in _products(graph):
        weights = stored.get(node.input[1])
        if weights is not None and (node.op_type == "Conv" or len(weights.dims) == 2):
            uses.setdefault(weights.name, []).append((axis, _largest(node, numpy_helper.to_array(weights))))
    overrides = {}
    for name, pairs in uses.items():
        axes, largest = {axis for axis, _ in pairs}, [values for _, values in pairs]
        if not per_channel:
            overrides[name] = [_scale(max(float(values.max()) for values in largest))]
        elif len(axes) == 1:
            overrides[name] = [{**_scale(value), "axis": min(axes)} for value in np.max(largest, axis=0)]
    return overrides


def _scale(largest: float) -> dict[str, Any]:
    scale = np.float32(largest / LARGEST)
    return {"scale": scale if scale >= np.finfo(np.float32).tiny else np.float32(1), "zero_point": np.int8(0)}


def _products(graph: onnx.GraphProto) -> Iterator[tuple[onnx.NodeProto, int]]:
    """Yield the nodes that become integer products, and the axis of their weights' output channels."""
    for node in graph.node:
        if node.op_type == "Conv":
            yield node, 0
        elif node.op_type in ("Gemm", "MatMul"):
            yield node, 0 if _attribute(node, "transB", 0) else 1


def _largest(node: onnx.NodeProto, weights: Array) -> Array:
    """Return the largest weight or sum of two neighbors of one sign, by output channel, in the kernel's order."""
    if node.op_type == "Conv":
        rows = np.moveaxis(weights, 1, -1).reshape(len(weights), -1).T
        if weights.shape[1] == 1 and _attribute(node, "group", 1) == len(weights):  # depthwise
            alone: Array = np.abs(rows).max(axis=0)
            return alone
    else:
        rows = weights.T if _attribute(node, "transB", 0) else weights
    pairs = np.concatenate([rows, np.zeros_like(rows[: len(rows) % 2])])
    high, low = (np.maximum(sign * pairs, 0) for sign in (1, -1))
    largest: Array = np.maximum((high[0::2] + high[1::2]).max(axis=0), (low[0::2] + low[1::2]).max(axis=0))
    return largest


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)
