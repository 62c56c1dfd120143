"""Architectures by name: a small one of this project, and every classifier of `keras.applications`."""

import re
import zlib
from functools import lru_cache
from typing import Any

from frameworks.architecture_names import names_in_source, unknown_architecture
from frameworks.keras.initial_weights import SUFFIX, load_published
from frameworks.keras.tensorflow_setup import start_tensorflow
from gauntlet.core.errors import StageError, one_line
from gauntlet.core.frozen import Frozen

SMALL = "small-cnn"
EXPORTED = re.compile(r'"keras\.applications\.([A-Z]\w+)"')
CLASSIFIER = "predictions"
MIN_STRIDED_SIZE = 64
"""Pixels; below, EfficientNet's first convolution gets stride 1, because its five halvings would leave one pixel."""


class KerasNetworkSpec(Frozen):
    """An architecture for images of shape (height, width, channels)."""

    architecture: str
    shape: tuple[int, int, int]
    classes: int
    batch_norm_momentum: float
    seed: int = 0

    def build(self) -> Any:
        """Return an untrained network with one score (no softmax) per class; raise StageError if it cannot be built.

        Equal specs give equal weights.
        """
        keras = start_tensorflow()
        keras.utils.clear_session()  # layers get the same names each time
        return keras.models.clone_model(self._original(keras), clone_function=self._adapted)

    def load_published(self, network: Any, name: str) -> tuple[str, ...]:
        """Load the weights that Keras publishes, but for the head; return the paths of the head's own.

        Raise StageError if there are none.
        """
        if self.architecture == SMALL:
            raise StageError(
                f"train.weights: {name}: there are no published weights for {SMALL}. Fix: name a file that ends with "
                f"{SUFFIX}, or use an architecture of keras.applications"
            )
        build = getattr(start_tensorflow().applications, known_names()[self.architecture])
        return load_published(network, build, name, self.shape)

    def _original(self, keras: Any) -> Any:
        if self.architecture == SMALL:
            return self._small_cnn(keras)
        build = getattr(keras.applications, known_names()[self.architecture])
        try:
            return build(weights=None, input_shape=self.shape, classes=self.classes, classifier_activation=None)
        except ValueError as error:
            raise StageError(
                f"train.architecture: {self.architecture} cannot be built for images of {self.shape} "
                f"({one_line(error)}). Fix: change data.image_size, or use another architecture"
            ) from error

    def _adapted(self, layer: Any) -> Any:
        """Return the layer as it is used here.

        Preprocessing is removed, because the data is normalized already. The classifier starts at zero (as in BiT,
        Kolesnikov et al., ECCV 2020): EfficientNet's initialization is meant for 1000 classes, and too large for 10.
        """
        layers = start_tensorflow().layers
        config = layer.get_config()
        small = self.architecture.startswith("efficientnet") and min(self.shape[:2]) < MIN_STRIDED_SIZE
        if isinstance(layer, (layers.Rescaling, layers.Normalization)) or (small and layer.name == "stem_conv_pad"):
            return layers.Identity(name=layer.name)
        if small and layer.name == "stem_conv":
            config |= {"strides": (1, 1), "padding": "same"}
        if layer.name == CLASSIFIER and "kernel_initializer" in config:
            config["kernel_initializer"] = "zeros"
        if isinstance(layer, layers.BatchNormalization):
            config["momentum"] = self.batch_norm_momentum
        return type(layer).from_config(self._seeded(config, layer.name))

    def _seeded(self, config: Any, path: str) -> Any:
        """Return a layer's configuration with all seeds set; Keras would draw them from Python's shared generator."""
        if isinstance(config, dict):
            return {key: self._seeded(value, f"{path}/{key}") for key, value in config.items()}
        if config is None and path.endswith("/seed"):
            return zlib.crc32(f"{self.seed}/{path}".encode())
        return config

    def _small_cnn(self, keras: Any) -> Any:
        layers = keras.layers
        inputs = x = keras.Input(self.shape)
        for width in (16, 32, 64):
            x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = layers.MaxPooling2D()(layers.ReLU()(layers.BatchNormalization()(x)))
        return keras.Model(inputs, layers.Dense(self.classes)(layers.GlobalAveragePooling2D()(x)), name="small_cnn")


@lru_cache
def known_names() -> dict[str, str]:
    """Return the names of all architectures, in lower case -> Keras's own."""
    names = names_in_source("keras", "src/applications", EXPORTED)
    return {SMALL: SMALL, **{name.lower(): name for name in sorted(names)}}


def check_name(name: str) -> str:
    """Return the name in lower case; raise ValueError, with the nearest known names, if it is unknown."""
    known = known_names()
    if name.lower() in known or len(known) == 1:  # without Keras, the run is refused later, naming the package
        return name.lower()
    raise unknown_architecture(name.lower(), known)
