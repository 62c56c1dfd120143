"""A bundle as a page in a real browser: ONNX Runtime Web runs its golden samples, and the image that is dropped."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import onnxruntime
import pytest
from playwright.sync_api import Browser, Page, expect
from runtime_environments import home_with
from served_bundles import brightness_bundle, write_bundle
from small_images import DROP, gray_png
from static_files import served

from gauntlet.bundle.bundle import MODEL, Bundle, seal
from gauntlet.core.errors import ConfigError
from gauntlet.core.signature import OperatorLibrary, signature_from_graph
from wings.devices.training_step import training_step
from wings.devices.web_page import write_web_page

pytestmark = [pytest.mark.browser, pytest.mark.nightly]
TRAIN = """async ({features, labels, weight, bias, sizes: [n, size, classes], steps}) => {
  const ort = await import("/ort/ort.wasm.min.mjs");
  ort.env.wasm.wasmPaths = new URL("/ort/", location.href).href;
  const session = await ort.InferenceSession.create("/training_step.onnx", {executionProviders: ["wasm"]});
  const floats = (values, shape) => new ort.Tensor("float32", Float32Array.from(values), shape);
  const feed = {
    features: floats(features, [n, size]), labels: new ort.Tensor("int64", BigInt64Array.from(labels.map(BigInt)), [n]),
    weight: floats(weight, [classes, size]), bias: floats(bias, [classes]), learning_rate: floats([0.3], []),
  };
  const losses = [];
  for (let step = 0; step < steps; step++) {
    const {loss, new_weight, new_bias} = await session.run(feed);
    losses.push(loss.data[0]);
    Object.assign(feed, {weight: new_weight, bias: new_bias});
  }
  return {losses, weight: [...feed.weight.data], bias: [...feed.bias.data]};
}"""
Open = Callable[[Path], Page]
WAIT_MS = 60_000


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with home_with(["web"], tmp_path_factory.mktemp("home")) as root:
        yield root


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    """Opens a folder's page, which may ask no other server for anything."""
    problems: list[str] = []
    servers, pages = [], []

    def open_page(folder: Path) -> Page:
        servers.append(served(folder))
        url = servers[-1].__enter__()
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        pages.append(page)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "request", lambda request: request.url.startswith((url, "blob:", "data:")) or problems.append(request.url)
        )
        page.goto(url)
        return page

    yield open_page
    for page in pages:
        page.close()
    for server in servers:
        server.__exit__(None, None, None)
    assert not problems


def page_of(bundle: Path, target: Path) -> Path:
    write_web_page(Bundle.open(bundle), target)
    return target


def parity(page: Page, outcome: str) -> str:
    """Wait for the check's end, and return what the page says."""
    place = page.locator(f"#parity[data-outcome={outcome}]")
    expect(place).to_be_visible(timeout=WAIT_MS)
    return place.inner_text()


@pytest.mark.parametrize("batch", ["n", 3], ids=["any-batch", "fixed-batch"])
def test_page_proves_its_golden_outputs_and_predicts_the_dropped_image(
    opened: Open, tmp_path: Path, batch: str | int
) -> None:
    page = opened(page_of(brightness_bundle(tmp_path / "b", batch=batch), tmp_path / "page"))
    assert "They match: largest difference" in parity(page, "pass")
    assert "16 samples" in parity(page, "pass")
    for level, label in ((255, "bright"), (0, "dark"), (128, "middle")):
        page.evaluate(DROP, [list(gray_png(level)), "image.png"])
        expect(page.locator(".best")).to_have_text(label)
    assert page.locator("#image").evaluate("image => image.naturalWidth") == 12
    page.evaluate(DROP, [list(b"no image"), "broken.png"])
    expect(page.locator("#result .error")).to_contain_text("not an image")


def test_page_of_a_model_that_was_tampered_with_says_so_and_predicts_nothing(opened: Open, tmp_path: Path) -> None:
    folder = page_of(brightness_bundle(tmp_path / "b"), tmp_path / "page")
    other = brightness_bundle(tmp_path / "other", bias=3.0)
    (folder / MODEL).write_bytes((other / MODEL).read_bytes())
    page = opened(folder)
    text = parity(page, "fail")
    assert "They do not match, so this page predicts nothing: 'y' differs by" in text
    page.evaluate(DROP, [list(gray_png(255)), "white.png"])
    expect(page.locator("#result")).to_have_text("The prediction appears here.")
    expect(page.locator("#file")).to_be_disabled()


def test_page_of_a_damaged_model_says_that_it_cannot_run(opened: Open, tmp_path: Path) -> None:
    folder = page_of(brightness_bundle(tmp_path / "b"), tmp_path / "page")
    (folder / MODEL).write_bytes(b"no model")
    assert "The model cannot run in this browser" in parity(opened(folder), "fail")


def test_model_with_external_data_other_types_and_no_images_is_checked_too(opened: Open, tmp_path: Path) -> None:
    proto = onnx_text.model(
        """two (int64[n,4] x, float16[n,4] h) => (float16[n,4] y, int64[n] best) <float[4,4] w> {
          f = Cast<to=1>(x) m = MatMul(f, w) s = Cast<to=10>(m) y = Add(s, h) best = ArgMax<axis=1, keepdims=0>(m)
        }"""
    )
    inputs = {"x": np.arange(20).reshape(5, 4) % 7, "h": np.ones((5, 4))}  # wider than float16, as of a table
    signature = signature_from_graph(proto)
    bundle = write_bundle(tmp_path / "b", proto.SerializeToString(), signature, inputs, name="two")
    onnx.save(proto, bundle / MODEL, save_as_external_data=True, location="w.bin", size_threshold=0)
    seal(bundle)
    folder = page_of(bundle, tmp_path / "page")
    assert json.loads((folder / "page.json").read_text())["external_data"] == ["w.bin"]
    page = opened(folder)
    assert "5 samples" in parity(page, "pass")
    expect(page.locator("#hint")).to_contain_text("no way to turn an image into")


def test_what_exists_is_kept(tmp_path: Path) -> None:
    bundle = brightness_bundle(tmp_path / "b")
    (tmp_path / "page").mkdir()
    with pytest.raises(ConfigError, match=r"page: it exists\. Fix: remove it, or choose another --web"):
        page_of(bundle, tmp_path / "page")


def test_model_with_operator_libraries_is_refused(tmp_path: Path) -> None:
    bundle = Bundle.open(brightness_bundle(tmp_path / "b"))
    library = OperatorLibrary(name="own.so", sha256="0" * 64)
    changed = bundle.contract.signature.replace(operator_libraries=(library,))
    other = Bundle(bundle.folder, bundle.contract.replace(signature=changed), bundle.manifest)
    with pytest.raises(ConfigError, match=r"--web: the model needs the operator libraries own\.so"):
        write_web_page(other, tmp_path / "page")
    assert not (tmp_path / "page").exists()


def test_last_layer_learns_in_the_browser_as_it_does_in_python(browser: Browser, tmp_path: Path) -> None:
    n, size, classes, steps = 6, 5, 3, 8
    folder = page_of(brightness_bundle(tmp_path / "b"), tmp_path / "page")
    model = training_step(classes, size)
    onnx.save(model, folder / "training_step.onnx")
    rng = np.random.default_rng(0)
    arrays = {"features": rng.standard_normal((n, size)), "weight": rng.standard_normal((classes, size))}
    feed = {name: array.astype(np.float32) for name, array in (arrays | {"bias": np.zeros(classes)}).items()}
    labels = rng.integers(0, classes, n)
    given = {name: array.ravel().tolist() for name, array in feed.items()}
    given |= {"labels": labels.tolist(), "sizes": [n, size, classes], "steps": steps}
    with served(folder) as url:
        page = browser.new_page()
        page.goto(f"{url}/page.css")
        found = page.evaluate(TRAIN, given)
        page.close()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    losses = []
    for _ in range(steps):
        loss, weight, bias = session.run(None, feed | {"labels": labels, "learning_rate": np.array(0.3, np.float32)})
        feed |= {"weight": weight, "bias": bias}
        losses.append(float(loss))
    assert found["losses"] == pytest.approx(losses, abs=1e-5)
    assert np.abs(np.array(found["weight"]) - feed["weight"].ravel()).max() <= 1e-5
    assert np.abs(np.array(found["bias"]) - feed["bias"]).max() <= 1e-5
