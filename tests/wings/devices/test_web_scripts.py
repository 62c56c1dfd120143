"""The page's scripts do what the Python code does: images become the same inputs, outputs the same predictions."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Error, Page
from static_files import served

from gauntlet.core.signature import Preprocessing, Signature, TensorSpec
from gauntlet.images.decoding import decode_image
from gauntlet.images.preprocessing import preprocess
from gauntlet.problems import problem_of
from gauntlet.problems.classification import Classification
from wings.devices.web_page import copy_assets

pytestmark = pytest.mark.browser

INPUT = """async ([bytes, how, layout]) => {
  const {imageInput, readPixels} = await import("/image_input.js");
  const pixels = await readPixels(new File([new Uint8Array(bytes)], "image.png", {type: "image/png"}));
  return [...imageInput(pixels, how, layout)];
}"""
PREDICT = """async ([values, shape, signature, temperature]) => {
  const {predict} = await import("/prediction.js");
  return predict(Float64Array.from(values), shape, signature, temperature ?? null);
}"""
HALVES = """async (bits) => {
  const {numbers} = await import("/golden.js");
  return [...numbers({type: "float16", data: Uint16Array.from(bits)})].map(String);
}"""


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    assets = tmp_path_factory.mktemp("page") / "assets"
    copy_assets(assets)
    with served(assets) as url:
        page = browser.new_page()
        page.goto(f"{url}/page.css")
        yield page
        page.close()


def noise(width: int, height: int, mode: str) -> bytes:
    rng = np.random.default_rng(width * height)
    pixels = rng.integers(0, 256, (height, width, len(mode)), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels.squeeze(), mode).save(buffer, "PNG")
    return buffer.getvalue()


def test_transparent_image_whose_colors_a_canvas_loses_is_refused(page: Page) -> None:
    with pytest.raises(Error, match="the image is transparent in places"):
        distance_from_python(page, COLORS, noise(8, 6, "RGBA"), "NCHW")


COLORS = {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7), "channel_order": "BGR"}


def distance_from_python(page: Page, values: dict[str, Any], content: bytes, layout: Any) -> float:
    """Return by how much the page's input for an image of the size 8 x 6 differs from Python's, at most."""
    how = Preprocessing.model_validate({"height": 6, "width": 8, "scale": 1 / 255} | values)
    expected = preprocess(decode_image(content, len(how.mean)), how, layout)
    found = np.array(page.evaluate(INPUT, [list(content), how.model_dump(mode="json"), layout]))
    return float(np.abs(found.reshape(expected.shape) - expected.astype(int if how.in_graph else expected.dtype)).max())


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("size", "resize", "layout"),
    [
        ((8, 6), "stretch", "NCHW"),
        ((31, 17), "stretch", "NHWC"),
        ((30, 45), "crop", "NCHW"),
        ((5, 3), "crop", "NHWC"),
        ((4, 6), "stretch", "NCHW"),
        ((31, 17), "letterbox", "NCHW"),
        ((5, 30), "letterbox", "NHWC"),
    ],
)
def test_image_becomes_the_input_that_python_makes_of_it(
    page: Page, mode: str, channels: int, size: tuple[int, int], resize: str, layout: Any
) -> None:
    values = {"mean": (0.1, 0.2, 0.3)[:channels], "std": (0.5, 0.6, 0.7)[:channels], "resize": resize}
    assert distance_from_python(page, values, noise(*size, mode), layout) <= 1e-6


@pytest.mark.parametrize("interpolation", ["nearest", "bicubic", "lanczos"])
@pytest.mark.parametrize("size", [(31, 17), (5, 3)])
def test_interpolation_and_channel_order_are_those_of_python(
    page: Page, size: tuple[int, int], interpolation: str
) -> None:
    values = COLORS | {"resize": "letterbox", "interpolation": interpolation}
    assert distance_from_python(page, values, noise(*size, "RGB"), "NCHW") <= 1e-5


@pytest.mark.parametrize("size", [(8, 6), (31, 17)])
def test_model_that_normalizes_itself_gets_the_levels(page: Page, size: tuple[int, int]) -> None:
    values = COLORS | {"resize": "crop", "in_graph": True}
    assert distance_from_python(page, values, noise(*size, "RGB"), "NHWC") <= (0 if size == (8, 6) else 1)


def signature(task: str, labels: tuple[str, ...] = (), dtype: str = "float32", **changes: Any) -> Signature:
    spec = TensorSpec(name="y", dtype=dtype, shape=("n", 3))
    known = {"task": task, "inputs": (spec,), "outputs": (spec,), "labels": labels}
    return Signature.model_validate(known | changes)


@pytest.mark.parametrize(
    "scores",
    [[1.0, -2.0, 30.0], [0.2, 0.5, 0.3], [0.0, 0.0, 0.0], [-1e30, 5, 5]],
    ids=["scores", "shares", "ties", "-"],
)
def test_classes_have_the_confidence_that_python_gives_them(page: Page, scores: list[float]) -> None:
    known = signature("classification", ("ant", "bee", "cat"))
    [expected] = problem_of(known).decode({"y": np.array([scores], np.float64)})
    found = page.evaluate(PREDICT, [scores, [3], known.model_dump(mode="json")])["top"]
    assert [one["label"] for one in found] == [one.label for one in expected.top]  # type: ignore[attr-defined]
    confidences = [one.confidence for one in expected.top]  # type: ignore[attr-defined]
    assert [one["confidence"] for one in found] == pytest.approx(confidences)


@pytest.mark.parametrize(
    ("changes", "scores", "temperature"),
    [
        ({}, [0.9], None),
        ({}, [0.2], 2.5),
        ({"logit": True}, [0.75], None),
        ({"logit": True}, [-3.0], 0.5),
        ({"threshold": 0.2}, [0.7, 0.3], None),
        ({"threshold": 0.8}, [-1.0, 0.25], 1.5),
        ({"threshold": 0.8, "logit": True}, [1.0], None),
        ({}, [0.499, 0.504], None),
    ],
)
def test_two_classes_are_told_as_python_tells_them(
    page: Page, changes: dict[str, Any], scores: list[float], temperature: float | None
) -> None:
    known = signature("classification", ("no", "yes"), **changes)
    problem = Classification(known, temperature)
    [expected] = problem.decode({"y": np.array([scores], np.float64)})
    shape = [len(scores)]
    found = page.evaluate(PREDICT, [scores, shape, known.model_dump(mode="json"), temperature])["top"]
    assert [one["label"] for one in found] == [one.label for one in expected.top]
    shares = [one.confidence if temperature is None else one.calibrated for one in expected.top]
    assert [one["confidence"] for one in found] == pytest.approx(shares)


@pytest.mark.parametrize(
    ("task", "values", "labels"),
    [
        ("multi-label", [3.0, -1.0, 0.25], ("ant", "bee", "cat")),
        ("multi-label", [0.1, 0.2, 0.3], ("ant", "bee", "cat")),
        ("regression", [3.25, -1.0, 12345.678], ("x", "y", "z")),
        ("regression", [1.5, 2.5, 3.5], ()),
    ],
)
def test_other_predictions_read_as_in_python(
    page: Page, task: str, values: list[float], labels: tuple[str, ...]
) -> None:
    known = signature(task, labels)
    [expected] = problem_of(known).decode({"y": np.array([values], np.float64)})
    found = page.evaluate(PREDICT, [values, [3], known.model_dump(mode="json")])
    readable = [line.replace("1.235e+04", "12350") for line in expected.lines()]
    assert found["lines"] == readable


def test_class_itself_has_no_confidence_and_tensors_show_their_shape(page: Page) -> None:
    known = signature("classification", ("ant", "bee", "cat"), "int64").model_dump(mode="json")
    for shape in ([], [1]):
        assert page.evaluate(PREDICT, [[1], shape, known])["top"] == [{"label": "bee", "confidence": None}]
    signs = signature("classification", ("-1", "1"), "int64").model_dump(mode="json")
    assert page.evaluate(PREDICT, [[-1], [], signs])["top"] == [{"label": "-1", "confidence": None}]
    logits = signature("multi-label", ("ant", "bee"), logit=True).model_dump(mode="json")
    assert page.evaluate(PREDICT, [[0.25, -1.0], [2], logits])["lines"] == ["ant 56.2%"]
    arrays = signature("arrays").model_dump(mode="json")
    assert page.evaluate(PREDICT, [[1, 2, 3, 4], [2, 2], arrays])["lines"] == ["arrays: 2 x 2", "1, 2, 3, 4"]


def test_half_precision_is_read_exactly(page: Page) -> None:
    values = np.array([0, -0.0, 1, -2.5, 6e-8, 65504, np.inf, -np.inf], np.float16)
    found = page.evaluate(HALVES, values.view(np.uint16).tolist())
    assert [float(text) for text in found] == values.astype(float).tolist()
    assert page.evaluate(HALVES, [0x7E00]) == ["NaN"]
