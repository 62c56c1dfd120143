"""Files that Keras 2 wrote: read and exported as it computed them, and refused where they bring code."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from frameworks.keras.tensorflow_setup import start_tensorflow
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature, TensorSpec

pytestmark = pytest.mark.slow


def keras_2() -> Any:
    """Return the package, behind what TensorFlow needs before it."""
    start_tensorflow()
    import tf_keras

    return tf_keras


@pytest.fixture
def load() -> Callable[..., Any]:
    from frameworks.keras import files

    return files.load


def recurrent() -> Any:
    tf_keras, layers = keras_2(), keras_2().layers
    parts = [layers.GRU(8, return_sequences=True), layers.Bidirectional(layers.LSTM(4)), layers.Dense(2)]
    return tf_keras.Sequential([layers.Input((12, 4)), *parts])


def convolutional() -> Any:
    tf_keras, layers = keras_2(), keras_2().layers
    image = tf_keras.Input((16, 16, 3))
    scaled = image / 127.5 - 1.0
    maps = layers.SeparableConv2D(4, 3)(layers.DepthwiseConv2D(3, groups=1)(scaled))
    normal = layers.BatchNormalization()(layers.ReLU(6.0)(maps))
    return tf_keras.Model(image, layers.Dense(2)(layers.GlobalAveragePooling2D()(normal)))


def attentive() -> Any:
    tf_keras, layers = keras_2(), keras_2().layers
    words = tf_keras.Input((6, 8))
    mixed = layers.LayerNormalization()(layers.MultiHeadAttention(2, 4)(words, words) + words)
    return tf_keras.Model(words, layers.Dense(2)(layers.Flatten()(mixed)))


@pytest.mark.parametrize(("suffix", "exporter"), [(".keras", "Tf2Onnx"), (".h5", "SavedModel")])
@pytest.mark.parametrize("build", [recurrent, convolutional, attentive])
def test_networks_are_read_and_exported_as_they_were(
    load, tmp_path: Path, build: Callable[[], Any], suffix: str, exporter: str
) -> None:
    from frameworks.keras import kinds
    from frameworks.keras.model import from_network

    network, file = build(), tmp_path / f"m{suffix}"
    network.save(file)
    x = np.random.default_rng(0).random((5, *network.inputs[0].shape[1:])).astype(np.float32)
    expected = network.predict(x, verbose=0)
    model = from_network(load(file))
    assert model.framework.startswith("tf_keras 2.")
    np.testing.assert_allclose(model.call(x)[0], expected, atol=1e-6)
    inputs = (TensorSpec(name="x", dtype="float32", shape=("batch", *x.shape[1:])),)
    outputs = (TensorSpec(name="y", dtype="float32", shape=("batch", 2)),)
    signature = Signature(task="arrays", inputs=inputs, outputs=outputs, layout="NHWC" if x.ndim == 4 else "none")
    getattr(kinds, exporter)().write(file, signature, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, atol=1e-5)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_lambda_is_code_and_runs_only_if_it_is_trusted(
    load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    tf_keras, layers = keras_2(), keras_2().layers
    harmful = layers.Lambda(lambda x: (__import__("pathlib").Path("harm").touch(), x)[1])
    tf_keras.Sequential([layers.Input((3,)), harmful]).save(f"m{suffix}")
    Path("harm").unlink()  # of the build
    with pytest.raises(StageError, match="a Lambda layer or a function of its own, whose code loading runs"):
        load(Path(f"m{suffix}"))
    assert not Path("harm").exists()
    load(Path(f"m{suffix}"), trust=True)
    assert Path("harm").exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"module": "os", "class_name": "system"}, "the class os.system"),
        ({"class_name": "TFOpLambda", "config": {"name": "w", "function": "io.write_file"}}, "function io.write_file"),
        ({"class_name": "TFOpLambda", "config": {"name": "p", "function": "compat.v1.py_func"}}, "compat.v1.py_func"),
    ],
)
def test_file_that_names_more_than_layers_is_refused(load, tmp_path: Path, change: dict[str, Any], named: str) -> None:
    tf_keras, layers = keras_2(), keras_2().layers
    tf_keras.Sequential([layers.Input((3,)), layers.Dense(2)]).save(tmp_path / "sound.keras")
    with zipfile.ZipFile(tmp_path / "sound.keras") as sound, zipfile.ZipFile(tmp_path / "m.keras", "w") as file:
        for name in sound.namelist():
            content = sound.read(name)
            if name == "config.json":
                config = json.loads(content)
                config["config"]["layers"][1] |= change
                content = json.dumps(config).encode()
            file.writestr(name, content)
    with pytest.raises(StageError, match=named):
        load(tmp_path / "m.keras")
