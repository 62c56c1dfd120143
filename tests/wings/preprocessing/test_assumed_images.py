"""What a run says of the preprocessing that it assumes for images: how many answers another one would change."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from configs.brought_model import infer_config


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
