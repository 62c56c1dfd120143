"""Networks with random weights as the exporters of torchvision and Keras write them, and the table of these."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from onnx_models import with_weights_as_constants

SIDE = 64


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


def resnet_with_constants(path: Path) -> None:
    """Export a small torchvision ResNet, and store its weights in Constant nodes."""
    import torch
    from torchvision.models.resnet import BasicBlock, ResNet

    torch.manual_seed(0)
    network = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10, width_per_group=64).eval()
    names = {"input_names": ["image"], "output_names": ["scores"], "dynamic_axes": {"image": {0: "batch"}}}
    torch.onnx.export(network, (torch.randn(2, 3, 48, 48),), path, opset_version=13, dynamo=False, **names)
    onnx.save(with_weights_as_constants(onnx.load(path)), path)


EXPORTED: dict[str, Callable[[Path], None]] = {
    "torchscript-resnet18-opset9": partial(torchvision, "resnet18", 9, dynamo=False),
    "torchscript-resnet18-opset17": partial(torchvision, "resnet18", 17, dynamo=False),
    "torchscript-resnet-weights-as-constants": resnet_with_constants,
    "torchscript-mobilenet_v3_small-opset14": partial(torchvision, "mobilenet_v3_small", 14, dynamo=False),
    "dynamo-mobilenet_v3_small-opset18": partial(torchvision, "mobilenet_v3_small", 18, dynamo=True),
    "torchscript-shufflenet_v2_x0_5-opset12": partial(torchvision, "shufflenet_v2_x0_5", 12, dynamo=False),
    "torchscript-squeezenet1_1-opset15": partial(torchvision, "squeezenet1_1", 15, dynamo=False),
    "torchscript-googlenet-opset13": partial(torchvision, "googlenet", 13, dynamo=False),
    "tf2onnx-MobileNetV2-opset9": partial(keras, "MobileNetV2", 9),
    "tf2onnx-EfficientNetB0-opset15": partial(keras, "EfficientNetB0", 15),
}
"""Name -> function that writes the model, which takes images: three exporters, old and new opsets, NCHW and NHWC."""
