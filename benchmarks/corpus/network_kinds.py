"""Networks of further kinds as exporters write them: control flow, state, heads of detectors, attention, trees."""

from pathlib import Path
from typing import Any

import onnx
from onnx_models import in_float16, quantized, with_weights_as_constants


def scripted_control_flow(path: Path) -> None:
    """A scripted PyTorch network: an If on the values, and a Loop of as many steps as the input has rows."""
    import torch
    from torch import Tensor, nn

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.step, self.head = nn.Linear(24, 48), nn.Linear(48, 48), nn.Linear(48, 5)

        def forward(self, frames: Tensor) -> Tensor:
            state = torch.zeros([frames.size(1), 48])
            for place in range(frames.size(0)):
                state = torch.tanh(self.step(state) + self.first(frames[place]))
            if bool(state.abs().mean() > 0.5):  # noqa: SIM108 - an If node
                state = self.step(state)
            else:
                state = state * 2.0
            return self.head(state)

    torch.manual_seed(0)
    axes = {"frames": {0: "time", 1: "batch"}}
    network = torch.jit.script(Gated().eval())
    _torchscript(network, (torch.randn(6, 2, 24),), path, 14, ["frames"], ["scores"], dynamic_axes=axes)


def torch_lstm(path: Path) -> None:
    """A bidirectional LSTM of two layers, whose state is an input and an output."""
    import torch
    from torch import Tensor, nn

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(20, 32, num_layers=2, batch_first=True, bidirectional=True)
            self.head = nn.Linear(64, 9)

        def forward(self, frames: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            features, (hidden, cell) = self.lstm(frames, (hidden, cell))
            return self.head(features), hidden, cell

    torch.manual_seed(0)
    example = (torch.randn(1, 12, 20), torch.zeros(4, 1, 32), torch.zeros(4, 1, 32))
    names = ["frames", "hidden", "cell"], ["tags", "next_hidden", "next_cell"]
    _torchscript(Tagger().eval(), example, path, 15, *names)


def ssdlite(path: Path) -> None:
    """Torchvision's SSDLite with its head: boxes decoded, and non-maximum suppression for each class."""
    import torch
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    torch.manual_seed(0)
    network = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=6, detections_per_img=20)
    example = (torch.rand(1, 3, 320, 320),)
    _torchscript(network.eval(), example, path, 12, ["image"], ["boxes", "scores", "labels"])


def segmenter(path: Path) -> None:
    """Torchvision's LR-ASPP with two outputs, resized to the size of the image."""
    import torch
    from torch import Tensor, nn
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    class Maps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4)

        def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
            logits = self.network(image)["out"]
            return logits, logits.argmax(1)

    torch.manual_seed(0)
    axes = {name: {0: "batch"} for name in ("image", "logits", "map")}
    example = (torch.randn(2, 3, 96, 96),)
    _torchscript(Maps().eval(), example, path, 16, ["image"], ["logits", "map"], dynamic_axes=axes)


def vision_transformer(path: Path) -> None:
    """A small ViT from the exporter of `torch.export` programs."""
    import torch
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    network = VisionTransformer(32, 8, num_layers=3, num_heads=4, hidden_dim=96, mlp_dim=192, num_classes=10).eval()
    torch.nn.init.normal_(network.heads.head.weight, std=0.1)  # torchvision's is zero: constant outputs
    shapes = ({0: torch.export.Dim("batch")},)
    names: dict[str, Any] = {"input_names": ["image"], "output_names": ["scores"]}
    example = (torch.randn(2, 3, 32, 32),)
    options: dict[str, Any] = {"dynamic_shapes": shapes, "external_data": False, "verbose": False}
    torch.onnx.export(network, example, path, opset_version=18, dynamo=True, **names, **options)


def changed_resnet(path: Path, form: str) -> None:
    """A small torchvision ResNet whose file somebody changed, or that was exported with unusual options."""
    import torch
    from torchvision.models.resnet import BasicBlock, ResNet

    torch.manual_seed(0)
    network = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10, width_per_group=64).eval()
    options: dict[str, Any] = {"dynamic_axes": {"image": {0: "batch"}}}
    if form == "weights-as-inputs":
        options |= {"keep_initializers_as_inputs": True, "do_constant_folding": False}
    example = (torch.randn(2, 3, 48, 48),)
    _torchscript(network, example, path, 9 if form == "weights-as-inputs" else 13, ["image"], ["scores"], **options)
    changes = {
        "weights-as-constants": with_weights_as_constants,
        "float16": in_float16,
        "static-int8": lambda proto: quantized(proto, static=True),
    }
    if form in changes:
        onnx.save(changes[form](onnx.load(path)), path)


def keras_gru(path: Path) -> None:
    """A Keras GRU over token numbers by tf2onnx, which may write a Loop."""
    import keras
    import tensorflow as tf
    import tf2onnx

    keras.utils.set_random_seed(0)
    ids = keras.Input((10,), dtype="int32", name="ids")
    features = keras.layers.GRU(24)(keras.layers.Embedding(50, 16)(ids))
    network = keras.Model(ids, keras.layers.Dense(6, activation="softmax")(features))
    signature = (tf.TensorSpec((None, 10), tf.int32, name="ids"),)
    tf2onnx.convert.from_keras(network, input_signature=signature, opset=15, output_path=str(path))


def keras_own_exporter(path: Path) -> None:
    """A small Keras network by Keras's own exporter."""
    import keras

    keras.utils.set_random_seed(0)
    inputs = keras.Input((32, 32, 3), name="image")
    features = keras.layers.Conv2D(16, 3, strides=2, padding="same", activation="relu")(inputs)
    features = keras.layers.SeparableConv2D(32, 3, padding="same", activation="relu")(features)
    features = keras.layers.GlobalAveragePooling2D()(features)
    network = keras.Model(inputs, keras.layers.Dense(10)(features))
    network(keras.ops.zeros((1, 32, 32, 3)))  # the exporter wants a network that has been called
    network.export(str(path), format="onnx", verbose=False)


def jax_function(path: Path) -> None:
    """A JAX function of convolutions and products by jax2onnx."""
    import jax
    import jax2onnx
    import numpy as np
    from jax import numpy as jnp

    rng = np.random.default_rng(0)
    kernels = [jnp.asarray(rng.normal(0, 0.2, shape), jnp.float32) for shape in ((3, 3, 3, 16), (3, 3, 16, 24))]
    head = jnp.asarray(rng.normal(0, 0.2, (24, 7)), jnp.float32)

    def scores(image: Any) -> Any:
        for kernel in kernels:
            strides, layout = (2, 2), ("NHWC", "HWIO", "NHWC")
            image = jax.nn.gelu(jax.lax.conv_general_dilated(image, kernel, strides, "SAME", dimension_numbers=layout))
        return jax.nn.softmax(image.mean((1, 2)) @ head)

    onnx.save(jax2onnx.to_onnx(scores, [("batch", 32, 32, 3)], opset=21), path)


def forest(path: Path) -> None:
    """A random forest by skl2onnx: a label and probabilities, from operators of `ai.onnx.ml`."""
    from skl2onnx import to_onnx
    from sklearn.datasets import load_digits
    from sklearn.ensemble import RandomForestClassifier

    features, labels = load_digits(return_X_y=True)
    features = features.astype("float32")
    model = RandomForestClassifier(20, max_depth=6, random_state=0).fit(features, labels)
    onnx.save(to_onnx(model, features[:1], options={"zipmap": False}), path)


def _torchscript(
    network: Any,
    example: tuple[Any, ...],
    path: Path,
    opset: int,
    inputs: list[str],
    outputs: list[str],
    **others: Any,
) -> None:
    import torch

    names: dict[str, Any] = {"input_names": inputs, "output_names": outputs}
    torch.onnx.export(network, example, path, opset_version=opset, dynamo=False, verbose=False, **names, **others)
