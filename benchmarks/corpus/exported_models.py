"""Networks as the exporters of torchvision, Keras, scikit-learn and JAX write them, and the table of all of these."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import network_kinds
import onnx
from light_networks import LIGHT, light

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
    "torchscript-scripted-control-flow": network_kinds.scripted_control_flow,
    "torchscript-lstm": network_kinds.torch_lstm,
    "torchscript-ssdlite": network_kinds.ssdlite,
    "torchscript-segmenter": network_kinds.segmenter,
    "dynamo-vision-transformer": network_kinds.vision_transformer,
    **{
        f"torchscript-resnet-{form}": partial(network_kinds.changed_resnet, form=form)
        for form in ("weights-as-inputs", "weights-as-constants", "float16", "static-int8")
    },
    "tf2onnx-gru": network_kinds.keras_gru,
    "keras-own-exporter": network_kinds.keras_own_exporter,
    "jax2onnx-function": network_kinds.jax_function,
    "skl2onnx-mlp": scikit_learn,
    "skl2onnx-forest": network_kinds.forest,
    **{f"light-{name}": partial(light, name) for name in LIGHT},
}
"""Name -> function that writes the model."""
