"""Networks as the exporters of torchvision, Keras and scikit-learn write them, and the light models of `onnx`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from onnx import helper, numpy_helper
from onnx_models import random_weights

Make = Callable[[Path], None]
"""Writes the model to a file."""

SIDE = 64
TORCH_OPSETS = {
    "resnet18": (9, 11, 13, 17, 20),
    "mobilenet_v3_small": (11, 14, 18),
    "shufflenet_v2_x0_5": (9, 12, 16),
    "squeezenet1_1": (10, 15),
    "efficientnet_b0": (17,),
    "googlenet": (13,),
}
DYNAMO_OPSETS = {"mobilenet_v3_small": (18, 20), "resnet18": (19,)}
KERAS_OPSETS = {"MobileNetV2": (9, 13, 18), "EfficientNetB0": (15,)}
LIGHT = (
    *("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50"),
    *("shufflenet", "squeezenet", "vgg19", "zfnet512"),
)
NARROWED = {"bvlc_alexnet": 8, "vgg19": 8, "zfnet512": 8}
"""Light model -> divisor of its channels: at full width, these store hundreds of megabytes."""


def torchvision(name: str, opset: int, path: Path, *, dynamo: bool) -> None:
    """Export a torchvision network with random weights and a dynamic batch."""
    import torch
    import torchvision.models

    torch.manual_seed(0)
    options: dict[str, Any] = {"init_weights": True} if name == "googlenet" else {}
    network = torchvision.models.get_model(name, weights=None, num_classes=10, **options).eval()
    if dynamo:
        axes: dict[str, Any] = {"dynamic_shapes": ({0: torch.export.Dim("batch")},), "external_data": False}
    else:
        axes = {"dynamic_axes": {"input": {0: "batch"}, "scores": {0: "batch"}}}
    example = (torch.randn(2, 3, SIDE, SIDE),)
    names = {"input_names": ["input"], "output_names": ["scores"]}
    torch.onnx.export(network, example, path, opset_version=opset, dynamo=dynamo, verbose=False, **names, **axes)


def keras(name: str, opset: int, path: Path) -> None:
    """Export a Keras network with random weights by tf2onnx."""
    import keras as keras_package
    import tensorflow as tf
    import tf2onnx

    keras_package.utils.set_random_seed(0)
    network = getattr(keras_package.applications, name)(weights=None, classes=10, input_shape=(SIDE, SIDE, 3))
    signature = (tf.TensorSpec((None, SIDE, SIDE, 3), tf.float32, name="image"),)
    tf2onnx.convert.from_keras(network, input_signature=signature, opset=opset, output_path=str(path))


def scikit_learn(path: Path) -> None:
    """Export a scaled multilayer perceptron by skl2onnx."""
    from skl2onnx import to_onnx
    from sklearn.datasets import load_digits
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    features, labels = load_digits(return_X_y=True)
    features = features.astype("float32")
    model = make_pipeline(StandardScaler(), MLPClassifier((64,), max_iter=30, random_state=0)).fit(features, labels)
    onnx.save(to_onnx(model, features[:1], options={"zipmap": False}), path)


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


EXPORTED: dict[str, Make] = {
    **{
        f"torchscript-{name}-opset{opset}": partial(torchvision, name, opset, dynamo=False)
        for name, opsets in TORCH_OPSETS.items()
        for opset in opsets
    },
    **{
        f"dynamo-{name}-opset{opset}": partial(torchvision, name, opset, dynamo=True)
        for name, opsets in DYNAMO_OPSETS.items()
        for opset in opsets
    },
    **{
        f"tf2onnx-{name}-opset{opset}": partial(keras, name, opset)
        for name, opsets in KERAS_OPSETS.items()
        for opset in opsets
    },
    "skl2onnx-mlp": scikit_learn,
    **{f"light-{name}": partial(light, name) for name in LIGHT},
}
"""Name -> function that writes the model."""
