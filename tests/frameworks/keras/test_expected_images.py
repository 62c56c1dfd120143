"""Images for a Keras network are prepared as its first layers, or its architecture's own function, say."""

import inspect
from pathlib import Path

import numpy as np
import pytest

from configs.brought_model import infer_config
from frameworks.keras.tensorflow_setup import start_tensorflow
from gauntlet.core.signature import Preprocessing
from gauntlet.images.preprocessing import preprocess


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
