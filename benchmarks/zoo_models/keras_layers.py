"""Networks of Keras, each of a few layers: its documentation's, every activation, and its classifiers."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from frameworks.keras.tensorflow_setup import start_tensorflow
from gauntlet.core.arrays import NamedArrays
from zoo_models.zoo_model import AMPLIFIED, ZooModel, floats, with_samples

LAYERS: dict[str, tuple[tuple[int, ...], Callable[[Any], list[Any]]]] = {
    "conv1d": ((12, 4), lambda k: [k.Conv1D(6, 3, padding="causal"), k.MaxPooling1D(2), k.Flatten(), k.Dense(3)]),
    "conv3d": ((6, 6, 6, 2), lambda k: [k.Conv3D(4, 3), k.GlobalAveragePooling3D(), k.Dense(3)]),
    "dilated": ((12, 12, 3), lambda k: [k.Conv2D(4, 3, dilation_rate=2), k.GlobalMaxPooling2D(), k.Dense(3)]),
    "grouped": ((8, 8, 4), lambda k: [k.Conv2D(8, 3, groups=2, strides=2, padding="same"), k.Flatten(), k.Dense(3)]),
    "transposed": ((6, 6, 3), lambda k: [k.Conv2DTranspose(4, 3, 2, "same"), k.UpSampling2D(), k.Cropping2D(1)]),
    "separable1d": ((12, 4), lambda k: [k.SeparableConv1D(6, 3), k.AveragePooling1D(2), k.Flatten(), k.Dense(3)]),
    "group_norm": ((8, 8, 4), lambda k: [k.Conv2D(8, 3), k.GroupNormalization(4), k.ReLU(6), k.Flatten(), k.Dense(3)]),
    "layer_norm": ((8,), lambda k: [k.Dense(16), k.LayerNormalization(), k.UnitNormalization(), k.Dense(3)]),
    "simple_rnn": ((6, 5), lambda k: [k.SimpleRNN(7, return_sequences=True), k.SimpleRNN(5), k.Dense(3)]),
    "lstm": ((6, 5), lambda k: [k.LSTM(7, return_sequences=True), k.LSTM(5, go_backwards=True), k.Dense(3)]),
    "gru": ((6, 5), lambda k: [k.GRU(7, reset_after=False), k.Dense(3)]),
    "time_distributed": ((6, 5), lambda k: [k.TimeDistributed(k.Dense(4)), k.Bidirectional(k.LSTM(3)), k.Dense(3)]),
    "shapes": ((4, 6), lambda k: [k.Permute((2, 1)), k.Reshape((3, 8)), k.Flatten(), k.RepeatVector(2), k.Dense(3)]),
    "pools": ((9, 9, 3), lambda k: [k.ZeroPadding2D(1), k.AveragePooling2D(3, 2, "same"), k.MaxPooling2D(2)]),
    "rescaling": ((9, 9, 3), lambda k: [k.Rescaling(1 / 255), k.Resizing(6, 6), k.Flatten(), k.Dense(3)]),
    "normalization": ((8,), lambda k: [k.Normalization(mean=0.5, variance=2.0), k.Dense(3)]),
    "dropout": ((8,), lambda k: [k.Dropout(0.5), k.Dense(8), k.GaussianNoise(0.3), k.AlphaDropout(0.2), k.Dense(3)]),
    "rectifiers": ((8,), lambda k: [k.Dense(8), k.LeakyReLU(), k.Dense(8), k.PReLU(), k.Dense(8), k.ELU()]),
    "einsum": ((4, 6), lambda k: [k.EinsumDense("abc,cd->abd", (None, 5)), k.GlobalAveragePooling1D(), k.Softmax()]),
    "sequential": ((8,), lambda k: [k.Dense(16, activation="gelu"), k.Dense(3)]),
    "h5": (
        (16, 16, 3),
        lambda k: [
            k.SeparableConv2D(8, 3, activation="swish"),
            k.BatchNormalization(),
            k.DepthwiseConv2D(3),
            k.GlobalAveragePooling2D(),
            k.Dense(4, activation="softmax"),
        ],
    ),
    "half": (
        (8,),
        lambda k: [k.Dense(32, activation="relu", dtype="mixed_float16"), k.Dense(3, dtype="mixed_float16")],
    ),
    "bfloat16": ((8,), lambda k: [k.Dense(3, dtype="mixed_bfloat16")]),
    "exported": ((8,), lambda k: [k.Dense(6, activation="relu"), k.Dense(3)]),
    "random_crops": ((8, 8, 3), lambda k: [k.RandomFlip(), k.RandomRotation(0.1), k.Flatten(), k.Dense(3)]),
}
"""The shape of a sample, and a network's layers."""
FILES = {"h5": "model.h5", "exported": "saved_model"}
"""Those of networks that are not saved as `model.keras`."""
NEWER = ("exported",)
"""What `tf_keras` does not have, or another file shows."""
ACTIVATIONS = (
    "celu", "elu", "exponential", "gelu", "glu", "hard_shrink", "hard_sigmoid", "hard_silu", "hard_tanh",
    "leaky_relu", "linear", "log_sigmoid", "log_softmax", "mish", "relu", "relu6", "selu", "sigmoid", "silu",
    "soft_shrink", "softmax", "softplus", "softsign", "sparse_plus", "sparsemax", "squareplus", "tanh",
    "tanh_shrink", "threshold",
)  # fmt: skip
CLASSIFIERS = {
    "InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71, "MobileNet": 32, "MobileNetV2": 32,
    "MobileNetV3Small": 32, "MobileNetV3Large": 32, "NASNetMobile": 32, "NASNetLarge": 32, "VGG16": 32, "VGG19": 32,
    **{f"ConvNeXt{size}": 32 for size in ("Tiny", "Small", "Base", "Large", "XLarge")},
    **{f"DenseNet{depth}": 32 for depth in (121, 169, 201)},
    **{f"EfficientNetB{size}": 32 for size in range(8)},
    **{f"EfficientNetV2{size}": 32 for size in ("B0", "B1", "B2", "B3", "S", "M", "L")},
    **{f"ResNet{depth}{version}": 32 for depth in (50, 101, 152) for version in ("", "V2")},
}  # fmt: skip
"""All of keras.applications, and the height and width of their images in pixels."""


def keras_model(folder: Path, network: Any, draw: Callable[[int], NamedArrays], name: str = "model.keras") -> ZooModel:
    """Save a network as a file, or exported as a folder of TensorFlow's."""
    (network.save if "." in name else network.export)(folder / name)

    def outputs(samples: NamedArrays) -> list[Any]:
        values = [*samples.values()]
        result = network(values[0] if len(values) == 1 else samples, training=False)
        return [tensor.numpy() for tensor in start_tensorflow().tree.flatten(result)]

    return with_samples(folder / name, draw, outputs, words=())


def _layered(name: str, folder: Path, version: int = 3) -> ZooModel:
    keras, (shape, make) = start_tensorflow(), LAYERS[name]
    if version == 2:
        import tf_keras as keras
    network = keras.Sequential([keras.Input(shape), *make(keras.layers)])
    made = keras_model(folder, network, floats(*shape), FILES.get(name, "model.keras"))
    if name == "bfloat16":
        return replace(made, refusal="computes in bfloat16")
    return replace(made, words=("--trust",)) if name == "exported" else made


def _activated(name: str, folder: Path) -> ZooModel:
    keras = start_tensorflow()
    function = (lambda x: keras.activations.threshold(x, 0.1, 0.0)) if name == "threshold" else name
    x = keras.Input((8,))
    y = keras.layers.Activation(function)(keras.layers.Dense(6)(x)) if name != "threshold" else function(x)
    return keras_model(folder, keras.Model(x, y), floats(8))


def _classifier(name: str, folder: Path) -> ZooModel:
    size = CLASSIFIERS[name]
    network = getattr(start_tensorflow().applications, name)(input_shape=(size, size, 3), weights=None, classes=4)
    for layer in network.layers:  # with statistics of a batch, as untrained ones make all outputs equal
        if hasattr(layer, "moving_mean"):
            layer.momentum = 0.0
        elif type(layer).__name__ == "LayerScale":  # which begins at 1e-6 and hides what it multiplies
            layer.gamma.assign(layer.gamma * 0 + 1)
    pixels = floats(size, size, 3)
    scaled = lambda count: {name: 128 + 64 * array for name, array in pixels(count).items()}  # noqa: E731 - some rescale
    network(scaled(64)["x"], training=True)
    if name.startswith("VGG"):  # without norms, what differs between images fades from layer to layer
        head = network.layers[-1]
        scores = type(network)(network.input, head.input)(scaled(64)["x"]).numpy() @ head.kernel.numpy()
        head.kernel.assign(head.kernel / scores.std(0))
        head.bias.assign(-scores.mean(0) / scores.std(0))
    return replace(keras_model(folder, network, scaled), refusal=AMPLIFIED)


def _u_net(folder: Path) -> ZooModel:
    keras = start_tensorflow()
    k = keras.layers
    x = keras.Input((16, 16, 3))
    fine = k.Conv2D(4, 3, padding="same", activation="relu")(x)
    coarse = k.Conv2D(8, 3, padding="same", activation="relu")(k.MaxPooling2D()(fine))
    joined = k.Concatenate()([fine, k.Conv2DTranspose(4, 2, 2)(coarse)])
    return keras_model(folder, keras.Model(x, k.Conv2D(2, 1, activation="softmax")(joined)), floats(16, 16, 3))


def _residual(folder: Path) -> ZooModel:
    keras = start_tensorflow()
    k = keras.layers
    x = keras.Input((8, 8, 4))
    y = k.Multiply()([x, k.Dense(4, activation="sigmoid")(k.GlobalAveragePooling2D(keepdims=True)(x))])
    sums = k.Subtract()([k.Maximum()([k.Add()([x, y]), y]), k.Average()([x, y])])
    return keras_model(folder, keras.Model(x, k.Dense(3)(k.Flatten()(sums))), floats(8, 8, 4))


def _recurrent(folder: Path) -> ZooModel:
    keras = start_tensorflow()
    layers = keras.layers
    words = keras.Input((7,), dtype="int32", name="words")
    body = layers.Bidirectional(layers.GRU(6))(layers.Embedding(50, 8)(words))
    draw = lambda count: {"words": np.random.default_rng(1).integers(0, 50, (count, 7)).astype(np.int32)}  # noqa: E731
    return keras_model(folder, keras.Model(words, layers.Dense(3)(body)), draw)


def _attention(folder: Path) -> ZooModel:
    keras = start_tensorflow()
    layers = keras.layers
    x = keras.Input((6, 16))
    y = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 4)(x, x))
    return keras_model(
        folder, keras.Model(x, layers.GlobalMaxPooling1D()(layers.Dense(8, activation="elu")(y))), floats(6, 16)
    )


def _two_inputs(folder: Path) -> ZooModel:
    keras = start_tensorflow()
    layers = keras.layers
    left, right = keras.Input((4,), name="left"), keras.Input((3,), name="right")
    both = layers.Concatenate()([left, right])
    network = keras.Model(
        {"left": left, "right": right}, {"a": layers.Dense(2, name="a")(both), "b": layers.Dense(5, name="b")(both)}
    )
    return keras_model(folder, network, lambda count: floats(4, name="left")(count) | floats(3, name="right")(count))


def _texts(folder: Path) -> ZooModel:
    keras = start_tensorflow()
    layers = keras.layers
    word = keras.Input((2,), dtype="string", name="word")
    numbers = layers.Embedding(30, 3)(layers.StringLookup(vocabulary=[f"w{i}" for i in range(20)])(word))
    draw = lambda count: {"word": np.array([[f"w{i % 23}", f"w{i // 9}"] for i in range(count)])}  # noqa: E731
    return keras_model(folder, keras.Model(word, layers.Dense(4)(layers.Flatten()(numbers))), draw)


def layers() -> dict[str, Callable[[Path], ZooModel]]:
    """Return the networks by name."""
    return (
        {f"keras_{name}": partial(_layered, name) for name in LAYERS}
        | {f"keras2_{name}": partial(_layered, name, version=2) for name in LAYERS if name not in NEWER}
        | {f"keras_activation_{name}": partial(_activated, name) for name in ACTIVATIONS}
        | {f"keras_{name}": partial(_classifier, name) for name in CLASSIFIERS}
        | {"keras_u_net": _u_net, "keras_residual": _residual, "keras_recurrent": _recurrent}
        | {"keras_attention": _attention, "keras_two_inputs": _two_inputs, "keras_texts": _texts}
    )
