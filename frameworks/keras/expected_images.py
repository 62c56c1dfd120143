"""How a Keras network expects images: pixels where it scales them itself, else as its architecture's own function."""

import re
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from frameworks.keras.architectures import known_names
from frameworks.keras.tensorflow_setup import start_tensorflow
from gauntlet.datasets.normalized_images import IMAGENET
from gauntlet.frameworks.trial_run import ExpectedImages

SCALING = ("Rescaling", "Normalization", "TrueDivide", "Divide", "Multiply", "Subtract")
LEGACY_SCALING = ("tf.math.truediv", "tf.math.multiply", "tf.math.subtract")
"""Layers, and operations, that normalize pixels at the start of a network."""


def expected_images(network: Any) -> ExpectedImages | None:
    """Return what the first layers, or the name of an architecture of `keras.applications`, say; else None."""
    channels = network.inputs[0].shape[-1]
    if scaling := _scaling_layer(network):
        why = f"the network scales pixels itself, in the layer {scaling}"
        return ExpectedImages(why, (0.0,) * channels, (1 / 255,) * channels)
    architecture = _architecture(network.name)
    if architecture is None or channels != 3:
        return None
    module = sys.modules[getattr(start_tensorflow().applications, architecture).__module__]
    name = f"keras.applications.{module.__name__.rpartition('.')[2]}.preprocess_input"
    return _probed(module.preprocess_input, f"as {name} does, by the network's name {network.name}")


def published_images(name: str, shape: tuple[int, int, int]) -> ExpectedImages:
    """Return how images were prepared for the weights that Keras publishes, behind layers of the network that do so.

    `name` is that of an architecture in lower case, and `shape` that of an image, (height, width, channels).
    """
    build = getattr(start_tensorflow().applications, known_names()[name])
    network = build(weights=None, include_top=False, input_shape=shape)
    scaling = [layer for layer in network.layers if type(layer).__name__ in ("Rescaling", "Normalization")]
    if any(type(layer).__name__ == "Normalization" for layer in scaling):  # its statistics are among the weights
        return ExpectedImages("by ImageNet's mean and deviation", IMAGENET["mean"], IMAGENET["std"])
    if scaling:
        return _probed(lambda pixels: scaling[0](pixels).numpy(), f"as its layer {scaling[0].name} does")
    return _probed(sys.modules[build.__module__].preprocess_input, "as its preprocess_input does")


def _scaling_layer(network: Any) -> str | None:
    for layer in network._flatten_layers(include_self=False):
        kind = type(layer).__name__
        if kind in SCALING or (kind == "TFOpLambda" and layer.name.startswith(LEGACY_SCALING)):
            return str(layer.name)
        if layer.weights and not hasattr(layer, "layers"):
            return None
    return None


def _architecture(name: str) -> str | None:
    """Return the function that builds a network of such a name: `mobilenetv2_1.00_224` is of `MobileNetV2`."""
    plain, known = re.sub(r"[^a-z0-9]", "", name.lower()), known_names()
    fitting = [each for each in known if plain.startswith(each)] or [each for each in known if each.startswith(plain)]
    return known[max(fitting, key=len)] if plain and fitting else None


def _probed(preprocess: Any, why: str) -> ExpectedImages:
    """Return mean, deviation and order of the channels of a linear function of pixels, shape (n, h, w, 3)."""

    def of(*pixel: float) -> npt.NDArray[np.float64]:
        return np.asarray(preprocess(np.array(pixel, np.float64).reshape(1, 1, 1, 3)), np.float64).reshape(3)

    black, white, red = of(0, 0, 0), of(255, 255, 255), of(255, 0, 0)
    deviation = 1 / (white - black)
    mean, std = (tuple(np.round(values, 9).tolist()) for values in (-black * deviation, deviation))
    return ExpectedImages(why, mean, std, "RGB" if red[0] != black[0] else "BGR")
