"""TensorFlow starts without chatter, networks are built without preprocessing, and equal models are equal files."""

import os
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx_text
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.keras import files
from frameworks.keras.architectures import KerasNetworkSpec, known_names
from frameworks.keras.conversion import converting
from frameworks.keras.model import from_network, nhwc
from frameworks.keras.tensorflow_setup import start_tensorflow
from gauntlet.core.errors import StageError
from gauntlet.runtime.resources import usable_threads

pytestmark = pytest.mark.slow
QUIET = """
import os, sys
from frameworks.keras.tensorflow_setup import start_tensorflow
print("before", file=sys.stderr)
keras = start_tensorflow()
import tensorflow as tf
tf.constant(1) + 1
print("after", keras.config.backend(), tf.config.threading.get_intra_op_parallelism_threads(), file=sys.stderr)
"""


def recipe(architecture: str, size: int = 32, seed: int = 0) -> KerasNetworkSpec:
    return KerasNetworkSpec(
        architecture=architecture, shape=(size, size, 3), classes=7, batch_norm_momentum=0.5, seed=seed
    )


def run(code: str, **environment: str) -> tuple[int, str]:
    known = {"PATH", "HOME", "PYTHONPATH", "VIRTUAL_ENV"}
    env = {name: value for name, value in os.environ.items() if name in known} | environment
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_tensorflow_starts_in_silence_with_the_threads_of_this_process_and_pytorch_loads_after_it() -> None:
    told_otherwise = {"KERAS_BACKEND": "jax"}  # what the user prefers elsewhere does not count here
    code, told = run(QUIET + "import torch._dynamo", **told_otherwise)
    assert code == 0, told
    assert told.splitlines() == ["before", f"after tensorflow {usable_threads()}"]


def members(path: Path) -> dict[str, str]:
    """The digest of each part of a file: what differs is named, and pytest compares no megabytes."""
    with zipfile.ZipFile(path) as archive:
        return {name: sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def test_process_that_has_tensorflow_already_goes_on() -> None:
    code, told = run("import tensorflow\n" + QUIET, TF_CPP_MIN_LOG_LEVEL="3")
    assert code == 0, told
    assert told.splitlines()[-2:] == ["before", f"after tensorflow {usable_threads()}"]


def test_keras_with_another_backend_is_refused_in_one_sentence() -> None:
    code, told = run("import os; os.environ['KERAS_BACKEND'] = 'jax'; import keras\n" + QUIET)
    assert code == 1
    assert "this process has loaded Keras with the backend 'jax'" in told


def test_names_are_all_classifiers_when_keras_is_asked_itself() -> None:
    applications = start_tensorflow().applications
    shipped = {name for name in dir(applications) if name[0].isupper()}
    assert set(known_names().values()) == {"small-cnn", *shipped}


def test_efficientnet_has_no_preprocessing_and_keeps_small_pictures_large() -> None:
    layers = start_tensorflow().layers
    network = recipe("efficientnetb0").build()
    kinds = {type(layer) for layer in network.layers}
    assert not kinds & {layers.Rescaling, layers.Normalization}
    assert {x.momentum for x in network.layers if isinstance(x, layers.BatchNormalization)} == {0.5}
    assert network.get_layer("stem_conv").output.shape == (None, 32, 32, 32)
    assert network.get_layer("top_activation").output.shape == (None, 2, 2, 1280)
    assert network.output.shape == (None, 7)
    assert not np.any(
        from_network(network).call(np.ones((2, 32, 32, 3), np.float32))[0]
    )  # the classifier starts at zero


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("mobilenet", 32),
        pytest.param("mobilenetv3small", 64, marks=pytest.mark.nightly),
        pytest.param("efficientnetb0", 64, marks=pytest.mark.nightly),
        pytest.param("efficientnetv2b0", 32, marks=pytest.mark.nightly),
        pytest.param("mobilenetv2", 32, marks=pytest.mark.nightly),
        pytest.param("convnexttiny", 64, marks=pytest.mark.nightly),
        pytest.param("resnet50v2", 32, marks=pytest.mark.nightly),
        pytest.param("xception", 96, marks=pytest.mark.nightly),
    ],
)
def test_classifier_of_keras_answers_one_row_a_picture(name: str, size: int) -> None:
    model = from_network(recipe(name, size).build())
    (scores,) = model.call(np.zeros((2, size, size, 3), np.float32))
    assert scores.shape == (2, 7)
    assert np.isfinite(scores).all()


def test_architecture_is_refused_with_the_reason_when_pictures_are_too_small() -> None:
    with pytest.raises(StageError, match=r"efficientnetb0 cannot be built for images of \(8, 8, 3\) .*image_size"):
        recipe("efficientnetb0", 8).build()


def test_network_is_the_same_file_when_it_is_written_twice(tmp_path: Path) -> None:
    network, paths = recipe("small-cnn", 8).build(), [tmp_path / "first.keras", tmp_path / "second.keras"]
    for path in paths:
        files.save(path, network)
    first, second = (members(path) for path in paths)
    assert first == second
    pictures = np.ones((2, 8, 8, 3), np.float32)
    answers = [np.asarray(from_network(files.load(path)).call(pictures)[0]) for path in paths]
    assert np.array_equal(*answers)


def test_folder_comes_back_as_it_was_when_it_was_packed(tmp_path: Path) -> None:
    contents = {"saved_model.pb": b"graph", "variables/variables.index": b"\0\1", "assets/words.txt": "wörter".encode()}
    for name, data in contents.items():
        path = tmp_path / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    files.pack_saved_model(tmp_path / "model", tmp_path / "model.zip", "score")
    assert files.unpack_saved_model(tmp_path / "model.zip", tmp_path / "again") == "score"
    assert {
        p.relative_to(tmp_path / "again").as_posix(): p.read_bytes() for p in files.files_of(tmp_path / "again")
    } == (contents)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_pictures_are_transposed_only_when_they_are_nchw(count: int, height: int, width: int, channels: int) -> None:
    pictures = np.arange(count * height * width * channels).reshape(count, height, width, channels)
    assert np.array_equal(nhwc(pictures.transpose(0, 3, 1, 2), "NCHW"), pictures)
    assert nhwc(pictures, "NHWC") is pictures
    assert nhwc(pictures[0], "NCHW") is not None
    assert np.array_equal(nhwc(pictures[0], "NCHW"), pictures[0])


def test_outputs_of_a_sequential_network_have_the_same_names_each_time_it_is_loaded(tmp_path: Path) -> None:
    keras = start_tensorflow()
    keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, name="scores")]).save(tmp_path / "sequential.keras")
    names = [from_network(files.load(tmp_path / "sequential.keras")).outputs for _ in range(2)]
    assert names == [("scores",), ("scores",)]


def test_steps_of_the_optimization_share_the_weights() -> None:
    text = "m (float[n,2048] x) => (float[n,2048] y) <float[2048,2048] w> { z = MatMul(x, w) y = Identity(z) }"
    proto = onnx_text.model(text, {"w": np.ones((2048, 2048), np.float32)}, opset=13)  # 16 MiB
    with converting() as tf2onnx:
        converted, own = tf2onnx.graph.GraphUtil.create_graph_from_onnx_model(proto), psutil.Process()
        before = own.memory_info().rss
        optimized = tf2onnx.optimizer.optimize_graph(converted)
        grown = own.memory_info().rss - before
    assert [node.type for node in optimized.get_nodes() if not node.is_const()] == ["Placeholder", "MatMul"]
    assert grown < 4 * proto.ByteSize(), grown / proto.ByteSize()
