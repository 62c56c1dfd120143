"""The light models of the `onnx` wheel: networks of 2017 at opset 9, whose weights it stores as constants."""

from pathlib import Path

import onnx
from onnx import helper, numpy_helper
from onnx_models import random_weights

LIGHT = (
    *("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50"),
    *("shufflenet", "squeezenet", "vgg19", "zfnet512"),
)
NARROWED = {"bvlc_alexnet": 8, "vgg19": 8, "zfnet512": 8}
"""Light model -> divisor of its channels: at full width, these store hundreds of megabytes."""


def light(name: str, path: Path) -> None:
    """Write a light model of the `onnx` wheel, with random weights in place of its constant ones."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    proto = onnx.load(folder / f"light_{name}.onnx")
    graph, divisor = proto.graph, NARROWED.get(name, 1)
    stored = {tensor.name: tensor for tensor in graph.initializer}
    made = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    kept = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    dims = {node.output[0]: numpy_helper.to_array(stored[node.input[0]]).tolist() for node in made}
    dims |= {tensor.name: [*tensor.dims] for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT}
    reshaped = {node.input[1] for node in kept if node.op_type == "Reshape"} if divisor > 1 else set[str]()
    for tensor in [*graph.initializer]:
        if tensor.name in reshaped:
            axes = [_narrow(int(axis), divisor) for axis in numpy_helper.to_array(tensor)]
            tensor.CopyFrom(helper.make_tensor(tensor.name, onnx.TensorProto.INT64, [len(axes)], axes))
        elif tensor.name in dims or not any(tensor.name in node.input for node in kept):
            graph.initializer.remove(tensor)
    others = [value for value in graph.input if value.name not in stored or value.name in reshaped]
    del graph.node[:], graph.value_info[:], graph.input[:]
    graph.node.extend(kept)
    graph.input.extend(others)
    for weight, shape in dims.items():
        narrowed = tuple(_narrow(axis, divisor) for axis in shape)
        value = random_weights(weight, narrowed, helper.tensor_dtype_to_np_dtype(onnx.TensorProto.FLOAT))
        # Variances must be positive.
        graph.initializer.append(numpy_helper.from_array(abs(value) if len(shape) == 1 else value, weight))
    listed = {value.name for value in graph.input}
    graph.input.extend(  # as files of this age must
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in graph.initializer
        if tensor.name not in listed
    )
    onnx.save(proto, path)


def _narrow(axis: int, divisor: int) -> int:
    """Divide a number of channels; the image's, the classes' and a kernel's size stay."""
    return axis if axis < 32 or axis == 1000 else axis // divisor
