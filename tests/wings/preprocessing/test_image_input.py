"""The preprocessing in the graph is the host's, bit for bit; what another one than the assumed would change."""

from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
from image_models import HEIGHT, WIDTH, how, image_model, images
from PIL import Image

from configs.brought_model import infer_config
from gauntlet.core.signature import HogFeatures, Signature, TensorSpec
from gauntlet.images.preprocessing import preprocess_batch
from gauntlet.runtime.session import open_session
from gauntlet.runtime.subgraph import intermediate_values
from wings.preprocessing.library.image_input import add_image_input, image_input_obstacle


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("order", ["RGB", "BGR"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("opset", [9, 18])
def test_graph_normalizes_bit_for_bit_as_the_host_does(layout: str, order: str, channels: int, opset: int) -> None:
    preprocessing = how(channels, channel_order=order)
    proto = image_model(preprocessing, layout, opset=opset)
    host = open_session(proto.SerializeToString())
    signature = add_image_input(proto, Signature.read(proto))
    onnx.checker.check_model(proto, full_check=True)
    pixels = images(3, channels)
    expected = preprocess_batch(pixels, preprocessing, layout)  # type: ignore[arg-type]
    assert np.array_equal(intermediate_values(proto, ["x"], {"image": pixels})["x"], expected)
    [outputs] = open_session(proto.SerializeToString()).run(["y"], {"image": pixels})
    np.testing.assert_allclose(outputs, host.run(["y"], {"x": expected})[0], rtol=1e-5, atol=1e-6)
    assert signature == Signature.read(proto)
    assert signature.inputs == (TensorSpec(name="image", dtype="uint8", shape=("n", HEIGHT, WIDTH, channels)),)
    assert (signature.layout, signature.preprocessing) == ("NHWC", preprocessing.replace(in_graph=True))


def test_nothing_is_computed_that_changes_nothing() -> None:
    proto = image_model(how(mean=(0.0,) * 3, std=(1.0,) * 3))
    add_image_input(proto, Signature.read(proto))
    assert [node.op_type for node in proto.graph.node[:4]] == ["Transpose", "Cast", "Mul", "Identity"]


def test_name_that_the_graph_has_already_is_not_taken_again() -> None:
    proto = image_model(how(), input_name="image")
    assert add_image_input(proto, Signature.read(proto)).inputs[0].name == "image_"
    open_session(proto.SerializeToString())


def test_branch_that_reads_the_input_still_sees_the_normalized_one() -> None:
    proto = onnx_text.model(
        f"""branches (float[n, {HEIGHT}, {WIDTH}, 1] x) => (float[n, {HEIGHT}, {WIDTH}, 1] y) <bool yes = {{1}}> {{
          y = If (yes) <then_branch = t () => (float[n, {HEIGHT}, {WIDTH}, 1] a) {{ a = Abs(x) }},
                        else_branch = e () => (float[n, {HEIGHT}, {WIDTH}, 1] b) {{ b = Neg(x) }}>
        }}"""
    )
    spec = TensorSpec(name="x", dtype="float32", shape=("n", HEIGHT, WIDTH, 1))
    signature = Signature(inputs=(spec,), outputs=(), layout="NHWC", preprocessing=how(1))
    add_image_input(proto, signature)
    pixels = images(2, 1)
    [found] = open_session(proto.SerializeToString()).run(["y"], {"image": pixels})
    np.testing.assert_allclose(found, np.abs((pixels / 255 - 0.5) / 0.25), atol=1e-6)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"preprocessing": None}, "describes no preprocessing"),
        ({"preprocessing": how(in_graph=True)}, "takes uint8 images already"),
        ({"preprocessing": how(hog=HogFeatures())}, "HOG features are computed by scikit-image"),
        ({"layout": "none"}, "'x' has no layout of images"),
        ({"inputs": ()}, "the model has 1 inputs; an image is one"),
    ],
)
def test_what_cannot_be_in_the_graph_is_named(change: dict[str, object], reason: str) -> None:
    proto = image_model(how())
    signature = Signature.read(proto)
    assert image_input_obstacle(proto, signature) == ""
    assert reason in image_input_obstacle(proto, signature.replace(**change))


def test_input_of_another_type_and_an_old_opset_are_named() -> None:
    signature = Signature.read(image_model(how()))
    half = onnx_text.model("m (float16[n, 3, 8, 6] x) => (float16[n, 3, 8, 6] y) { y = Relu(x) }")
    assert "'x' is float16; only float32" in image_input_obstacle(half, signature)
    old = onnx_text.model("m (float[n, 3, 8, 6] x) => (float[n, 3, 8, 6] y) { y = Relu(x) }", opset=6)
    assert "the opset is 6" in image_input_obstacle(old, signature)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Write a model that takes pixels from 0 to 255: it calls an image bright whose mean is above 100."""
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 3, 8, 8] image) => (float[n, 2] scores) {'
        "threshold = Constant <value = float {100.0}> ()  mean = ReduceMean <axes = [1, 2, 3], keepdims = 0> (image)"
        "bright = Sub(mean, threshold)  dark = Neg(bright)  axis = Constant <value_ints = [1]> ()"
        "first = Unsqueeze(bright, axis)  second = Unsqueeze(dark, axis)  both = Concat <axis = 1> (first, second)"
        "scores = Softmax <axis = 1> (both) }"
    )
    onnx.save(proto, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def photos(folder: Path, *, classes: bool) -> Path:
    rng = np.random.default_rng(0)
    for name, low in (("bright", 180), ("dark", 0)):
        place = folder / (name if classes else ".")
        place.mkdir(parents=True, exist_ok=True)
        for number in range(20):
            pixels = rng.integers(low, low + 60, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(place / f"{name}{number}.png")
    return folder


def test_preprocessing_that_is_right_for_more_images_is_proposed(model: Path, tmp_path: Path) -> None:
    note = infer_config(model, photos(tmp_path / "p", classes=True), None, {}).notes["images"]
    assert "of 16 images are right, and 16 with values from 0 to 255. Fix: --set data.mean=[0,0,0]" in note


def test_classes_without_scores_are_not_compared(tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 3, 8, 8] image) => (int64[n] best) {'
        "mean = ReduceMean <axes = [2, 3], keepdims = 0> (image) best = ArgMax <axis = 1, keepdims = 0> (mean) }"
    )
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    note = infer_config(tmp_path / "m.onnx", photos(tmp_path / "p", classes=False), None, {}).notes["images"]
    assert note.startswith("ASSUMED")


def test_without_labels_the_run_says_how_many_answers_change(model: Path, tmp_path: Path) -> None:
    note = infer_config(model, photos(tmp_path / "p", classes=False), None, {}, task="classification").notes["images"]
    assert "With values from 0 to 255 instead, " in note
    assert note.endswith("of 16 images get another class")
    assert "instead, 0 of" not in note
