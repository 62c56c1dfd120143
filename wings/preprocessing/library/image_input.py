"""The preprocessing of images as the first nodes of a graph, so that a model takes uint8 images."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gauntlet.core.arrays import Array
from gauntlet.core.signature import IMAGE_SCALE, Preprocessing, Signature, TensorSpec
from gauntlet.onnx_model.graph import all_nodes, opset_versions, required_inputs, tensor_shape, unused_name

NAME = "image"
MIN_OPSET = 7
"""From here on, Mul, Sub and Div broadcast."""
Step = tuple[str, Array | None, dict[str, Any]]
"""An operator, its second input and its attributes."""


def image_input_obstacle(proto: onnx.ModelProto, signature: Signature) -> str:
    """Return why the preprocessing cannot be part of this graph, in one line; empty where it can."""
    how, inputs = signature.preprocessing, required_inputs(proto.graph)
    if how is None:
        return "the signature describes no preprocessing of images: its data are arrays"
    if how.in_graph:
        return "the model takes uint8 images already"
    if how.hog is not None:
        return "HOG features are computed by scikit-image, for which ONNX has no operators"
    if len(inputs) != 1 or len(signature.inputs) != 1:
        return f"the model has {len(inputs)} inputs; an image is one"
    shape, kind = tensor_shape(inputs[0]), inputs[0].type.tensor_type.elem_type
    if signature.layout == "none" or shape is None or len(shape) != 4:
        return f"the input '{inputs[0].name}' has no layout of images (NCHW or NHWC)"
    if kind != TensorProto.FLOAT:
        return (
            f"the input '{inputs[0].name}' is {helper.tensor_dtype_to_np_dtype(kind).name}; only float32 is supported"
        )
    opset = opset_versions(proto).get("ai.onnx", 0)
    return f"the opset is {opset}; broadcasting needs {MIN_OPSET} at least" if opset < MIN_OPSET else ""


def add_image_input(proto: onnx.ModelProto, signature: Signature) -> Signature:
    """Let a model take images, uint8, shape (batch, height, width, channels); return its new signature, stored in it.

    The nodes compute in float32 what the signature's preprocessing says, in the same order and so bit for bit. The
    former input becomes an inner tensor of the same name. `image_input_obstacle` must have found nothing.
    """
    graph, how, [old] = proto.graph, signature.preprocessing, required_inputs(proto.graph)
    assert how is not None
    taken = _names(graph)
    spec = _image_spec(signature, unused_name(NAME, taken))
    nodes, tensor = [], spec.name
    for operator, constant, attributes in _steps(how, signature.layout):
        title = unused_name(f"{spec.name}/{operator.lower()}", taken)
        inputs = [tensor]
        if constant is not None:
            inputs.append(unused_name(f"{title}_by", taken))
            graph.initializer.append(numpy_helper.from_array(constant, inputs[1]))
        tensor = title
        nodes.append(helper.make_node(operator, inputs, [tensor], title, **attributes))
    nodes[-1].output[0] = old.name
    for node in reversed(nodes):
        graph.node.insert(0, node)
    graph.value_info.add().CopyFrom(old)
    graph.input.remove(old)
    graph.input.insert(0, helper.make_tensor_value_info(spec.name, TensorProto.UINT8, spec.shape))
    proto.ir_version = max(proto.ir_version, 4)  # before, initializers are inputs too
    changed = signature.replace(inputs=(spec,), layout="NHWC", preprocessing=how.replace(in_graph=True))
    changed.write(proto)
    return changed


def _steps(how: Preprocessing, layout: str) -> Iterator[Step]:
    """Yield the operators from uint8 images, channels last, to the normalized input; copies come first, on bytes."""
    channels = len(how.mean)
    if how.channel_order == "BGR" and channels > 1:
        yield "Gather", np.arange(channels, dtype=np.int64)[::-1].copy(), {"axis": 3}
    if layout == "NCHW":
        yield "Transpose", None, {"perm": [0, 3, 1, 2]}
    yield "Cast", None, {"to": TensorProto.FLOAT}
    yield "Mul", np.array(IMAGE_SCALE, np.float32), {}
    shape = (channels, 1, 1) if layout == "NCHW" else (channels,)
    if any(how.mean):
        yield "Sub", np.array(how.mean, np.float32).reshape(shape), {}
    if any(deviation != 1 for deviation in how.std):
        yield "Div", np.array(how.std, np.float32).reshape(shape), {}


def _image_spec(signature: Signature, name: str) -> TensorSpec:
    """Return the input of uint8 images, channels last, in place of the signature's own."""
    batch, *axes = signature.inputs[0].shape
    last = axes if signature.layout == "NHWC" else [*axes[1:], axes[0]]
    return TensorSpec(name=name, dtype="uint8", shape=(batch, *last))


def _names(graph: onnx.GraphProto) -> set[str]:
    """Return all names of nodes and tensors, those in branches included."""
    nodes = [name for node in all_nodes(graph) for name in (node.name, *node.input, *node.output)]
    return {*nodes, *(value.name for value in (*graph.input, *graph.output, *graph.initializer))}
