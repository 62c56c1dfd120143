"""Architectures by name: a small one of our own making, and every classifier in `keras.applications`."""

import difflib
import importlib.util
import re
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.frameworks.keras.tensorflow_setup import start_tensorflow

SMALL = "small-cnn"
EXPORTED = re.compile(r'"keras\.applications\.([A-Z]\w+)"')
CLASSIFIER = "predictions"
SMALL_PICTURES = 64
"""Pixels; below, EfficientNet's first convolution keeps the size, because its five halvings would leave one pixel."""


class KerasNetworkSpec(Frozen):
    """An architecture with what it is built for: pictures of shape (height, width, channels)."""

    architecture: str
    shape: tuple[int, int, int]
    classes: int
    batch_norm_momentum: float
    seed: int = 0

    def build(self) -> Any:
        """Return an untrained network that gives one score (no softmax) a class; the same weights for the same recipe.

        Raises:
            StageError: when Keras cannot build it for such pictures.
        """
        keras = start_tensorflow()
        keras.utils.clear_session()  # layers get the same names each time
        return keras.models.clone_model(self._original(keras), clone_function=self._own)

    def _original(self, keras: Any) -> Any:
        if self.architecture == SMALL:
            return self._small_cnn(keras)
        name = known_names()[self.architecture]
        try:
            return getattr(keras.applications, name)(
                weights=None, input_shape=self.shape, classes=self.classes, classifier_activation=None
            )
        except ValueError as error:
            raise StageError(
                f"train.architecture: {self.architecture} cannot be built for pictures of {self.shape} "
                f"({' '.join(str(error).split())[:200]}); change data.image_size, or take another architecture"
            ) from error

    def _own(self, layer: Any) -> Any:
        """Return the layer as it is to be.

        Preprocessing is left out, because the data is normalised already. The classifier starts at zero (as in BiT,
        Kolesnikov et al., ECCV 2020): what Keras gives EfficientNet's is made for 1000 classes, and large for 10.
        """
        layers = start_tensorflow().layers
        config = layer.get_config()
        small = self.architecture.startswith("efficientnet") and min(self.shape[:2]) < SMALL_PICTURES
        if isinstance(layer, (layers.Rescaling, layers.Normalization)) or (small and layer.name == "stem_conv_pad"):
            return layers.Identity(name=layer.name)
        if small and layer.name == "stem_conv":
            config |= {"strides": (1, 1), "padding": "same"}
        if layer.name == CLASSIFIER and "kernel_initializer" in config:
            config["kernel_initializer"] = "zeros"
        if isinstance(layer, layers.BatchNormalization):
            config["momentum"] = self.batch_norm_momentum
        return type(layer).from_config(self._seeded(config, layer.name))

    def _seeded(self, config: Any, place: str) -> Any:
        """Return a layer's configuration with a seed wherever it has none.

        Keras would draw one from Python's global generator, from which other threads of this process draw as well.
        """
        if isinstance(config, dict):
            return {key: self._seeded(value, f"{place}/{key}") for key, value in config.items()}
        if config is None and place.endswith("/seed"):
            return zlib.crc32(f"{self.seed}/{place}".encode())
        return config

    def _small_cnn(self, keras: Any) -> Any:
        layers = keras.layers
        inputs = x = keras.Input(self.shape)
        for width in (16, 32, 64):
            x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = layers.BatchNormalization()(x)
            x = layers.ReLU()(x)
            x = layers.MaxPooling2D()(x)
        x = layers.GlobalAveragePooling2D()(x)
        return keras.Model(inputs, layers.Dense(self.classes)(x), name="small_cnn")


@lru_cache
def known_names() -> dict[str, str]:
    """Return every name that an architecture may have, in small letters, with Keras's own.

    They are read out of the source files: to ask Keras would be to import it, which takes seconds.
    """
    spec = importlib.util.find_spec("keras")
    folder = Path(spec.origin).parent / "src" / "applications" if spec and spec.origin else Path()
    found = {name for file in sorted(folder.glob("*.py")) for name in EXPORTED.findall(file.read_text("utf-8"))}
    return {SMALL: SMALL, **{name.lower(): name for name in sorted(found)}}


def check_name(name: str) -> str:
    """Return the name of an architecture in small letters, if it is one.

    Raises:
        ValueError: when it is none, with the nearest one.
    """
    known = known_names()
    if name.lower() in known or len(known) == 1:  # without Keras nobody knows; the run is refused for that
        return name.lower()
    near = difflib.get_close_matches(name.lower(), known, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else f" ({', '.join(known)})"
    raise ValueError(f"no architecture has this name{hint}")
