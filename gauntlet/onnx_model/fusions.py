"""Fuse HardSwish and GlobalAveragePool, which have integer kernels, from parts that have none."""

import math
from collections.abc import Mapping

import onnx
from onnx import TensorProto, helper

from gauntlet.onnx_model.graph import int_values, opset_versions

HARD_SWISH_OPSET = 14
"""The first opset with HardSwish."""
REAL = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


def fuse_patterns(model: onnx.ModelProto) -> None:
    """Fuse the parts of HardSwish and of GlobalAveragePool, in place. The model's shapes must be inferred."""
    if opset_versions(model).get("ai.onnx", 0) >= HARD_SWISH_OPSET:
        _fuse_hard_swish(model.graph)
    _fuse_global_average_pool(model.graph)


def _fuse_hard_swish(graph: onnx.GraphProto) -> None:
    """Fuse HardSwish, which ONNX Runtime decomposes when it folds constants.

    Its sessions decompose it again, but in OpenVINO a MobileNetV3 in INT8 takes 1.5 times as long with the parts.
    """
    readers = _readers(graph)
    for gate in [node for node in graph.node if node.op_type == "HardSigmoid"]:
        values = {attribute.name: attribute.f for attribute in gate.attribute}
        [x], [y] = gate.input, gate.output
        reading = readers.get(y, [])
        is_hard_swish = math.isclose(values.get("alpha", 0.2), 1 / 6, rel_tol=1e-6) and values.get("beta", 0.5) == 0.5
        if not is_hard_swish or len(reading) != 1 or reading[0] is None:
            continue
        if reading[0].op_type == "Mul" and sorted(reading[0].input) == sorted([x, y]):
            reading[0].op_type = "HardSwish"
            reading[0].input[:] = [x]
            graph.node.remove(gate)


def _fuse_global_average_pool(graph: onnx.GraphProto) -> None:
    """Replace the mean of each channel by GlobalAveragePool.

    Keras exports a ReduceMean that drops its axes and a Reshape that restores them. Quantizers do not quantize before a
    Reshape, so an EfficientNetB0 in INT8 was a fifth slower in OpenVINO and a seventh slower in ONNX Runtime.
    """
    constants = {tensor.name: tensor for tensor in graph.initializer}
    tensors = {info.name: info.type.tensor_type for info in [*graph.input, *graph.value_info]}
    readers = _readers(graph)
    for mean in [node for node in graph.node if node.op_type == "ReduceMean"]:
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in mean.attribute}
        axes = attributes.get("axes", ()) if len(mean.input) < 2 else int_values(constants.get(mean.input[1]))
        x = tensors.get(mean.input[0], onnx.TypeProto.Tensor())
        rank = len(x.shape.dim) if x.elem_type in REAL else 0
        if rank < 3 or sorted(axis % rank for axis in axes) != [*range(2, rank)]:
            continue
        if not attributes.get("keepdims", 1):
            reading = readers.get(mean.output[0], [])
            if len(reading) != 1 or reading[0] is None or not _restores(reading[0], x.shape, constants):
                continue
            mean.output[:] = reading[0].output
            graph.node.remove(reading[0])
        mean.op_type = "GlobalAveragePool"
        del mean.attribute[:], mean.input[1:]


def _restores(node: onnx.NodeProto, shape: onnx.TensorShapeProto, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Return whether a node is a Reshape that restores the dropped axes, all but the first two, with length 1."""
    if node.op_type != "Reshape" or any(attribute.i for attribute in node.attribute):  # allowzero
        return False
    target = int_values(constants.get(node.input[1]))
    return len(target) == len(shape.dim) and all(
        length == 1 if axis > 1 else length in (-1, 0) or length == shape.dim[axis].dim_value
        for axis, length in enumerate(target)
    )


def _readers(graph: onnx.GraphProto) -> dict[str, list[onnx.NodeProto | None]]:
    """Return the nodes that read each tensor; None stands for the caller of the model."""
    readers: dict[str, list[onnx.NodeProto | None]] = {output.name: [None] for output in graph.output}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    return readers
