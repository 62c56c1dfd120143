"""A bundle whose model normalizes images itself is used like any other, and predicts the same."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from bundles import pack
from image_models import HEIGHT, WIDTH, how, image_model, images
from PIL import Image
from server_process import ServerProcess, serving

import gauntlet
from gauntlet.bundle.bundle import Bundle
from gauntlet.bundle.golden_check import golden_differences
from gauntlet.bundle.web_page import _takes_images
from gauntlet.core.artifact import Artifact, Store
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.datasets.splits import ArraySplit
from gauntlet.images.preprocessing import preprocess_batch
from gauntlet.metrics.output_comparison import Tolerances
from gauntlet.monitoring.features import input_statistics
from gauntlet.problems.classification import ClassPrediction
from gauntlet.promotion.requests import ArrayRequests
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from tasks.preprocess import PreprocessConfig, preprocess

SIZES = ((HEIGHT, WIDTH), (31, 17), (5, 40))


def png(height: int, width: int) -> bytes:
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same network twice: normalized by its callers, in BGR, and by its graph."""
    root = tmp_path_factory.mktemp("bundles")
    store = Store(root / "store")

    def space(name: str) -> Workspace:
        (root / name).mkdir()
        return Workspace(store, root / name)

    out, plain = space("given"), how(channel_order="BGR", resize="letterbox")
    path = out.folder / "model.onnx"
    onnx.save(image_model(plain), path)
    inputs = {"x": preprocess_batch(images(16), plain, "NCHW")}
    outputs = batched_inference(open_session(path), inputs).run(4)
    Golden({"real": GoldenCase(inputs, outputs)}, outputs).save(out.folder / "golden.npz")
    split = ArraySplit(inputs, np.arange(16) % 5).save(out.folder, "test")
    host = dict(
        zip(("model", "golden", "test"), map(out.store_file, (path, out.folder / "golden.npz", split)), strict=True)
    )
    graph = preprocess(PreprocessConfig(), space("made"), **host, limits=Tolerances(samples=8)).artifacts

    def packed(name: str, parts: dict[str, Artifact]) -> Path:
        report = pack(space(name), parts["model"], parts["golden"], test=parts["test"])
        assert not report.failures
        return store.path(report.artifacts["bundle"])

    return packed("host", host), packed("graph", graph)


@pytest.fixture(scope="module")
def server(bundles: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("serving"), bundles[1], "--name", "graph") as found:
        yield found


def test_contract_says_that_the_model_takes_the_image_itself(bundles: tuple[Path, Path]) -> None:
    bundle = Bundle.open(bundles[1])
    contract = bundle.contract
    [spec] = contract.signature.inputs
    assert (spec.dtype, spec.shape, contract.signature.layout) == ("uint8", ("n", HEIGHT, WIDTH, 3), "NHWC")
    assert contract.signature.preprocessing == how(channel_order="BGR", resize="letterbox", in_graph=True)
    card = (bundle.folder / "README.md").read_text()
    assert "all but the resizing is done by the model, whose input is the uint8 image" in card
    assert _takes_images(contract.signature)


def test_golden_inputs_are_images_and_are_checked(bundles: tuple[Path, Path]) -> None:
    predictor = gauntlet.load(bundles[1])
    case = predictor.bundle.golden()
    assert case.inputs["image"].dtype == np.uint8
    assert max(one.max_rel_error for one in golden_differences(predictor)) == 0
    for name, expected in predictor.bundle.source_golden().outputs.items():
        np.testing.assert_allclose(case.outputs[name], expected, atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_both_bundles_predict_the_same(bundles: tuple[Path, Path], size: tuple[int, int]) -> None:
    host, graph = (gauntlet.load(path)(png(*size)) for path in bundles)
    assert isinstance(host, ClassPrediction) and isinstance(graph, ClassPrediction)
    scores = [{top.label: top.confidence for top in found.top} for found in (host, graph)]
    assert scores[0] == pytest.approx(scores[1], abs=0.002 if size != SIZES[0] else 1e-6)  # resized ones are rounded


def test_mlflow_loads_it_and_decodes_images(bundles: tuple[Path, Path], tmp_path: Path) -> None:
    import mlflow
    import pandas as pd

    predictor = gauntlet.load(bundles[1])
    model = mlflow.pyfunc.load_model(str(predictor.bundle.folder))
    [found] = model.predict(pd.DataFrame({"image": [png(*SIZES[1])]}))
    assert found == predictor(png(*SIZES[1])).model_dump(mode="json")


def test_service_takes_image_files_and_uint8_tensors(bundles: tuple[Path, Path], server: ServerProcess) -> None:
    expected = gauntlet.load(bundles[1])
    for size in SIZES:
        reply = server.request("POST", "/v2/models/graph/predict", png(*size), content_type="image/png")
        assert reply.status == 200, reply.body
        assert expected(png(*size)).model_dump(mode="json")["top"] == reply.json()["predictions"][0]["top"]
    [spec] = server.request("GET", "/v2/models/graph").json()["inputs"]
    assert (spec["name"], spec["datatype"], spec["shape"]) == ("image", "UINT8", [-1, HEIGHT, WIDTH, 3])


def test_recorded_images_are_requests_for_the_network_without_it(bundles: tuple[Path, Path]) -> None:
    host, graph = map(Bundle.open, bundles)
    requests = ArrayRequests("log", {"image": images(4)})
    plain = how(channel_order="BGR")
    assert np.array_equal(requests.inputs_for(host)["x"], preprocess_batch(images(4), plain, "NCHW"))
    assert np.array_equal(requests.inputs_for(graph)["image"], images(4))


def test_monitoring_measures_the_same_images(bundles: tuple[Path, Path]) -> None:
    host, graph = (Bundle.open(path).contract.signature for path in bundles)
    recorded = {"x": preprocess_batch(images(4), how(channel_order="BGR"), "NCHW")}
    found = input_statistics({"image": images(4)}, graph)
    np.testing.assert_allclose(found, input_statistics(recorded, host), atol=1e-5)
