"""Pretrained TensorFlow models: outputs are recorded, images prepared as expected, data that does not fit rejected."""

import inspect
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.brought_model import infer_config
from frameworks.keras.brought_model import KerasModel, SavedModelFolder
from frameworks.keras.tensorflow_setup import start_tensorflow
from gauntlet.core.artifact import Store
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import Preprocessing, Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.splits import ArraySplit
from gauntlet.images.preprocessing import preprocess
from tasks.train.facts import TrainFacts

pytestmark = pytest.mark.slow
RNG = np.random.default_rng(0)
PICTURES = RNG.standard_normal((12, 6, 5, 3)).astype(np.float32)
Bring = Callable[..., tuple[Report[TrainFacts], Golden]]


@pytest.fixture
def bring(workspace: Callable[..., Workspace]) -> Bring:
    def run(
        config: KerasModel | SavedModelFolder,
        inputs: dict[str, np.ndarray],
        labels: np.ndarray | None = None,
        layout: str = "NHWC",
    ) -> tuple[Report[TrainFacts], Golden]:
        specs = tuple(
            TensorSpec(name=n, dtype="str" if a.dtype.kind == "U" else a.dtype.name, shape=("batch", *a.shape[1:]))
            for n, a in inputs.items()
        )
        names = ("a", "b", "c", "d") if labels is not None else ()
        signature = Signature(inputs=specs, outputs=(), layout=layout, labels=names)
        out = workspace()
        report = config.fit({"test": ArraySplit(inputs, labels)}, signature, out)
        return report, Golden.load(out.path(report.artifacts["golden"]))

    return run


def picture_model() -> Any:
    keras = start_tensorflow()
    layers = keras.layers
    pixels = keras.Input((6, 5, 3), name="pixels")
    x = layers.Rescaling(0.5)(pixels)
    x = layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3, activation="relu")(x))
    return keras.Model(pixels, layers.Dense(4, activation="softmax", name="chances")(x))


@pytest.fixture(scope="module")
def picture_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "mine.keras"
    picture_model().save(path)
    return path


@pytest.fixture(scope="module")
def picture_folder(picture_file: Path) -> Path:
    folder = picture_file.parent / "saved"
    start_tensorflow().saving.load_model(picture_file).export(folder, verbose=False)
    return folder


def test_keras_file_answers_as_it_came_whatever_the_data_calls_its_input(bring: Bring, picture_file: Path) -> None:
    labels = np.arange(12) % 4
    report, golden = bring(KerasModel(model=picture_file), {"input": PICTURES}, labels)
    expected = np.asarray(start_tensorflow().saving.load_model(picture_file)(PICTURES))
    np.testing.assert_allclose(golden.real.outputs["chances"], expected, atol=1e-6)
    signature = report.facts.signature
    assert (signature.inputs[0].name, signature.primary_output) == ("input", "chances")
    assert signature.outputs[0].shape == ("batch", 4)
    assert report.artifacts["model"].name == "model.keras"
    assert report.facts.parameters == 4 * 3 * 9 + 4 + 4 * 4 + 4
    bytes_, _ = bring(KerasModel(model=picture_file), {"input": (PICTURES * 9).astype(np.uint8)}, labels)
    assert (
        bytes_.facts.signature.inputs[0].dtype == "float32"
    )  # whole numbers may go in, the signature has the model's type
    turned, same = bring(KerasModel(model=picture_file), {"x": PICTURES.transpose(0, 3, 1, 2)}, labels, "NCHW")
    np.testing.assert_allclose(same.real.outputs["chances"], golden.real.outputs["chances"], atol=1e-6)
    assert turned.facts.signature.inputs[0].shape == ("batch", 3, 6, 5)


def test_saved_model_answers_as_the_keras_file_that_it_came_from(bring: Bring, picture_folder: Path) -> None:
    report, golden = bring(SavedModelFolder(trust=True, model=picture_folder), {"input": PICTURES}, np.arange(12) % 4)
    expected = np.asarray(start_tensorflow().saving.load_model(picture_folder.parent / "mine.keras")(PICTURES))
    (name,) = golden.real.outputs
    np.testing.assert_allclose(golden.real.outputs[name], expected, atol=1e-6)
    assert report.facts.parameters == 132
    assert report.artifacts["model"].name == "model.zip"
    again, _ = bring(SavedModelFolder(trust=True, model=picture_folder), {"input": PICTURES}, np.arange(12) % 4)
    assert again.artifacts == report.artifacts
    assert {file.name for file in SavedModelFolder(trust=True, model=picture_folder).files()} >= {"saved_model.pb"}


def test_keras_file_with_several_inputs_takes_them_by_their_names(bring: Bring, tmp_path: Path) -> None:
    keras = start_tensorflow()
    words, side = keras.Input((4,), name="words", dtype="int32"), keras.Input((2,), name="side")
    x = keras.layers.Flatten()(keras.layers.Embedding(9, 3)(words))
    x = keras.layers.Concatenate()([x, side])
    outputs = {"scores": keras.layers.Dense(4, name="s")(x), "mood": keras.layers.Dense(1, name="m")(x)}
    keras.Model({"words": words, "side": side}, outputs).save(tmp_path / "two.keras")
    inputs = {"side": RNG.standard_normal((12, 2)).astype(np.float32), "words": RNG.integers(0, 9, (12, 4))}
    report, golden = bring(KerasModel(model=tmp_path / "two.keras"), inputs, layout="none")
    assert {spec.name: spec.dtype for spec in report.facts.signature.inputs} == {"side": "float32", "words": "int32"}
    assert {name: array.shape for name, array in golden.test_outputs.items()} == {"s": (12, 4), "m": (12, 1)}
    assert golden.cases["random"].inputs["words"].max() < 9
    with pytest.raises(StageError, match="rename the data's inputs"):
        bring(KerasModel(model=tmp_path / "two.keras"), {"a": inputs["side"], "b": inputs["words"]}, layout="none")


def test_integers_outside_the_range_of_the_input_are_refused(bring: Bring, tmp_path: Path) -> None:
    keras = start_tensorflow()
    words = keras.Input((4,), name="words", dtype="int32")
    x = keras.layers.Flatten()(keras.layers.Embedding(9, 3)(words))
    keras.Model(words, keras.layers.Dense(4)(x)).save(tmp_path / "words.keras")
    samples = {"words": RNG.integers(0, 9, (12, 4)) + 2**32}  # the same words modulo 2**32
    with pytest.raises(StageError, match=r"input 'words' takes int32, .* the samples are int64 from 4294967296"):
        bring(KerasModel(model=tmp_path / "words.keras"), samples, layout="none")


def test_saved_model_of_plain_tensorflow_needs_no_keras_layer(bring: Bring, tmp_path: Path) -> None:
    start_tensorflow()
    import tensorflow as tf

    class Scorer(tf.Module):
        def __init__(self) -> None:
            self.weight = tf.Variable(tf.random.stateless_normal((3, 4), (0, 1)))

        @tf.function(input_signature=[tf.TensorSpec((None, 3), tf.float32, name="row")])
        def score(self, row: Any) -> Any:
            return {"scores": tf.matmul(row, self.weight), "best": tf.argmax(tf.matmul(row, self.weight), 1)}

    module = Scorer()
    tf.saved_model.save(module, str(tmp_path / "plain"), signatures={"score": module.score})
    rows = RNG.standard_normal((12, 3)).astype(np.float64)
    config = SavedModelFolder(trust=True, model=tmp_path / "plain", signature="score", primary_output="best")
    report, golden = bring(config, {"row": rows}, np.arange(12) % 4, layout="none")
    assert report.facts.signature.inputs[0].dtype == "float32"
    assert np.array_equal(golden.test_outputs["best"], golden.test_outputs["scores"].argmax(1))
    assert report.facts.signature.primary_output == "best"
    with pytest.raises(StageError, match=r"train.signature may be: \['score'\]"):
        bring(SavedModelFolder(trust=True, model=tmp_path / "plain"), {"row": rows}, layout="none")
    with pytest.raises(StageError, match="no output 'worst'"):
        bring(config.replace(primary_output="worst"), {"row": rows}, layout="none")


@pytest.mark.parametrize(
    ("inputs", "layout", "message"),
    [
        ({"input": PICTURES[:, :5]}, "NHWC", r"takes \['n', 6, 5, 3\]"),
        ({"input": PICTURES}, "NCHW", r"after any transposition \(layout NCHW\)"),
        ({"input": PICTURES.astype(np.str_)}, "NHWC", "is float32, the data's 'input' str"),
        ({"a": PICTURES, "b": PICTURES}, "NHWC", r"inputs are \['pixels'\], the data's \['a', 'b'\]"),
    ],
)
def test_model_is_refused_when_the_data_does_not_fit(
    bring: Bring, picture_file: Path, inputs: dict[str, np.ndarray], layout: str, message: str
) -> None:
    with pytest.raises(StageError, match=message):
        bring(KerasModel(model=picture_file), inputs, layout=layout)


def test_file_is_refused_with_the_way_out_when_keras_cannot_read_it(bring: Bring, tmp_path: Path) -> None:
    keras = start_tensorflow()

    class Mine(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return x * 2

    pixels = keras.Input((6, 5, 3))
    keras.Model(pixels, Mine()(pixels)).save(tmp_path / "custom.keras")
    (tmp_path / "broken.keras").write_bytes(b"no archive")
    for name in ("custom.keras", "broken.keras", "missing.keras"):
        with pytest.raises(StageError, match=rf"{name}: Keras .* cannot read it.* gauntlet run FOLDER --trust"):
            bring(KerasModel(model=tmp_path / name), {"input": PICTURES})
    keras.Model(pixels, pixels).save_weights(tmp_path / "only.weights.h5")
    with pytest.raises(StageError, match=r"No model config.* Fix: save the whole network: model\.save"):
        bring(KerasModel(model=tmp_path / "only.weights.h5"), {"input": PICTURES})
    with pytest.raises(StageError, match=r"has no saved_model.pb"):
        bring(SavedModelFolder(model=tmp_path), {"input": PICTURES})
    with pytest.raises(StageError, match="is not a folder"):
        bring(SavedModelFolder(model=tmp_path / "nowhere"), {"input": PICTURES})


@pytest.mark.parametrize("name", ["lambda.keras", "lambda.h5"])
def test_lambda_layer_is_read_only_with_trust(bring: Bring, tmp_path: Path, name: str) -> None:
    keras = start_tensorflow()
    pixels = keras.Input((6, 5, 3))
    doubled = keras.layers.Lambda(lambda x: x * 2, output_shape=(6, 5, 3))(pixels)
    keras.Model(pixels, keras.layers.Flatten()(doubled)).save(tmp_path / name)
    with pytest.raises(StageError, match=r"lambda\.\w+: it holds Python code.* train\.trust=true"):
        bring(KerasModel(model=tmp_path / name), {"input": PICTURES})
    _, golden = bring(KerasModel(model=tmp_path / name, trust=True), {"input": PICTURES})
    assert np.array_equal(next(iter(golden.real.outputs.values())), golden.real.inputs["input"].reshape(-1, 90) * 2)
    bring(KerasModel(model=tmp_path / name), {"input": PICTURES})  # its content is stored by now


def test_saved_model_is_read_only_with_trust(bring: Bring, picture_folder: Path) -> None:
    other = picture_folder.parent / "other"
    shutil.copytree(picture_folder, other)
    (other / "assets" / "note.txt").write_text("another file")
    with pytest.raises(StageError, match=r"other: a SavedModel is a program.* train\.trust=true"):
        bring(SavedModelFolder(model=other), {"input": PICTURES})
    bring(SavedModelFolder(model=other, trust=True), {"input": PICTURES})
    bring(SavedModelFolder(model=other), {"input": PICTURES})  # its content is stored by now


def test_model_with_a_fixed_batch_is_refused_before_it_fails(bring: Bring, tmp_path: Path) -> None:
    keras = start_tensorflow()
    pixels = keras.Input(batch_shape=(2, 6, 5, 3))
    keras.Model(pixels, keras.layers.Flatten()(pixels)).save(tmp_path / "fixed.keras")
    with pytest.raises(StageError, match=r"takes 2 samples at once\. Fix: use a dynamic batch"):
        bring(KerasModel(model=tmp_path / "fixed.keras"), {"input": PICTURES})


def test_sequential_network_that_was_built_by_a_call_takes_any_batch(tmp_path: Path) -> None:
    keras = start_tensorflow()
    network = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)])
    network(PICTURES[:5])
    network.save(tmp_path / "net.keras")
    model = KerasModel(model=tmp_path / "net.keras").load_model(Store(tmp_path / "store"))
    [outputs] = model.call({"input": PICTURES[:7]}).values()
    np.testing.assert_allclose(outputs, network(PICTURES[:7]), atol=1e-5)


@pytest.fixture
def keras():
    return start_tensorflow()


@pytest.fixture
def expected():
    from frameworks.keras.expected_images import expected_images

    return expected_images


def network(keras, *layers: object, name: str = "mine") -> object:
    head = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2)]
    return keras.Sequential([keras.Input((32, 32, 3)), *layers, keras.layers.Conv2D(2, 3), *head], name=name)


@pytest.mark.parametrize(
    ("build", "module"), [("MobileNetV2", "mobilenet_v2"), ("ResNet50", "resnet"), ("DenseNet121", "densenet")]
)
def test_architecture_is_fed_as_its_own_function_prepares_images(expected, keras, build: str, module: str) -> None:
    found = expected(getattr(keras.applications, build)(weights=None, input_shape=(32, 32, 3), classes=2))
    assert f"keras.applications.{module}.preprocess_input" in found.why
    how = Preprocessing(
        height=32, width=32, scale=1 / 255, mean=found.mean, std=found.std, channel_order=found.channel_order
    )
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    theirs = getattr(keras.applications, module).preprocess_input(image[None].astype(np.float32))[0]
    np.testing.assert_allclose(preprocess(image, how, "NHWC"), theirs, rtol=1e-5, atol=1e-3)


def test_name_that_keras_gives_leads_to_the_architecture_s_own_function(keras) -> None:
    from frameworks.keras.architectures import known_names
    from frameworks.keras.expected_images import _architecture

    for name in known_names().values():
        build = getattr(keras.applications, name, None)
        given = inspect.signature(build).parameters["name"].default if build else None
        if given is not None:  # of MobileNet it depends on the size
            assert getattr(keras.applications, _architecture(given)).__module__ == build.__module__


@pytest.mark.parametrize("layer", ["Rescaling", "Normalization"])
def test_network_that_scales_pixels_gets_pixels(expected, keras, layer: str) -> None:
    scaling = keras.layers.Rescaling(1 / 255) if layer == "Rescaling" else keras.layers.Normalization()
    found = expected(network(keras, scaling))
    assert f"scales pixels itself, in the layer {layer.lower()}" in found.why
    assert (found.mean[0], found.std[0]) == (0, 1 / 255)


def test_other_networks_say_nothing(expected, keras) -> None:
    assert expected(network(keras)) is None
    assert expected(network(keras, keras.layers.Conv2D(2, 3), keras.layers.Rescaling(2.0))) is None  # not of pixels


def test_run_says_what_it_took_from_the_network(keras, tmp_path: Path) -> None:
    from small_images import write_pictures

    network(keras, keras.layers.Rescaling(1 / 255, name="scale")).save(tmp_path / "m.keras")
    found = infer_config(tmp_path / "m.keras", write_pictures(tmp_path / "p", "a", "b"), None, {})
    assert found.notes["images"].startswith("ASSUMED: the network scales pixels itself, in the layer scale: RGB / 255")
    assert (found.values["data"]["std"], found.values["data"]["resize"]) == ([1 / 255] * 3, "stretch")
