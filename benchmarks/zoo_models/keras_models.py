"""Networks of Keras."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from frameworks.keras.tensorflow_setup import start_tensorflow
from gauntlet.core.arrays import NamedArrays
from zoo_models.zoo_model import ZooModel, floats, with_samples


def keras_model(folder: Path, network: Any, draw: Callable[[int], NamedArrays], name: str = "model.keras") -> ZooModel:
    """Save a network as a file, or exported as a folder of TensorFlow's."""
    (network.save if "." in name else network.export)(folder / name)

    def outputs(samples: NamedArrays) -> list[Any]:
        values = [*samples.values()]
        result = network(values[0] if len(values) == 1 else samples, training=False)
        return [tensor.numpy() for tensor in start_tensorflow().tree.flatten(result)]

    return with_samples(folder / name, draw, outputs, words=())


def keras_sequential(folder: Path) -> ZooModel:
    """A perceptron with GELU."""
    keras = start_tensorflow()
    dense = keras.layers.Dense
    return keras_model(folder, keras.Sequential([keras.Input((8,)), dense(16, activation="gelu"), dense(3)]), floats(8))


def keras_h5(folder: Path) -> ZooModel:
    """A convolutional network in the older file."""
    keras = start_tensorflow()
    layers = keras.layers
    network = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.SeparableConv2D(8, 3, activation="swish"),
            layers.BatchNormalization(),
            layers.DepthwiseConv2D(3),
            layers.GlobalAveragePooling2D(),
            layers.Dense(4, activation="softmax"),
        ]
    )
    return keras_model(folder, network, floats(16, 16, 3), "model.h5")


def keras_recurrent(folder: Path) -> ZooModel:
    """A bidirectional GRU on embedded words."""
    keras = start_tensorflow()
    layers = keras.layers
    words = keras.Input((7,), dtype="int32", name="words")
    body = layers.Bidirectional(layers.GRU(6))(layers.Embedding(50, 8)(words))
    draw = lambda count: {"words": np.random.default_rng(1).integers(0, 50, (count, 7)).astype(np.int32)}  # noqa: E731
    return keras_model(folder, keras.Model(words, layers.Dense(3)(body)), draw)


def keras_attention(folder: Path) -> ZooModel:
    """A block of a transformer."""
    keras = start_tensorflow()
    layers = keras.layers
    x = keras.Input((6, 16))
    y = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 4)(x, x))
    return keras_model(
        folder, keras.Model(x, layers.GlobalMaxPooling1D()(layers.Dense(8, activation="elu")(y))), floats(6, 16)
    )


def keras_two_inputs(folder: Path) -> ZooModel:
    """Two inputs and two outputs by name."""
    keras = start_tensorflow()
    layers = keras.layers
    left, right = keras.Input((4,), name="left"), keras.Input((3,), name="right")
    both = layers.Concatenate()([left, right])
    network = keras.Model(
        {"left": left, "right": right}, {"a": layers.Dense(2, name="a")(both), "b": layers.Dense(5, name="b")(both)}
    )
    return keras_model(folder, network, lambda count: floats(4, name="left")(count) | floats(3, name="right")(count))


def keras_half(folder: Path) -> ZooModel:
    """Mixed precision with scores in float16."""
    keras = start_tensorflow()
    dense = keras.layers.Dense
    layers = [dense(32, activation="relu", dtype="mixed_float16"), dense(3, dtype="mixed_float16")]
    return keras_model(folder, keras.Sequential([keras.Input((8,)), *layers]), floats(8))


def keras_bfloat16(folder: Path) -> ZooModel:
    """Mixed precision in bfloat16."""
    keras = start_tensorflow()
    network = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, dtype="mixed_bfloat16")])
    made = keras_model(folder, network, floats(8))
    return ZooModel(made.source, made.seen, made.unseen, made.expected, refusal="computes in bfloat16")


def keras_texts(folder: Path) -> ZooModel:
    """Words that are looked up in a vocabulary."""
    keras = start_tensorflow()
    layers = keras.layers
    word = keras.Input((2,), dtype="string", name="word")
    numbers = layers.Embedding(30, 3)(layers.StringLookup(vocabulary=[f"w{i}" for i in range(20)])(word))
    draw = lambda count: {"word": np.array([[f"w{i % 23}", f"w{i // 9}"] for i in range(count)])}  # noqa: E731
    return keras_model(folder, keras.Model(word, layers.Dense(4)(layers.Flatten()(numbers))), draw)


def keras_mobilenet(folder: Path) -> ZooModel:
    """MobileNet of keras.applications."""
    keras = start_tensorflow()
    network = keras.applications.MobileNet((32, 32, 3), alpha=0.25, weights=None, classes=4)
    return keras_model(folder, network, floats(32, 32, 3))
