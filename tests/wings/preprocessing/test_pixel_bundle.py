"""A bundle whose model normalizes images itself is used like any other, and predicts the same."""

from pathlib import Path

import numpy as np
import pytest
from image_models import HEIGHT, WIDTH, how, images
from pixel_bundles import SIZES, pixel_bundles, png

import gauntlet
from gauntlet.bundle.bundle import Bundle
from gauntlet.bundle.loading import golden_differences
from gauntlet.core.errors import StageError
from gauntlet.images.preprocessing import fitting_inputs, preprocess_batch
from gauntlet.problems.classification import ClassPrediction
from gauntlet.request_log.input_statistics import input_statistics


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return pixel_bundles(tmp_path_factory.mktemp("bundles"))


def test_contract_says_that_the_model_takes_the_image_itself(bundles: tuple[Path, Path]) -> None:
    bundle = Bundle.open(bundles[1])
    contract = bundle.contract
    [spec] = contract.signature.inputs
    assert (spec.dtype, spec.shape, contract.signature.layout) == ("uint8", ("n", HEIGHT, WIDTH, 3), "NHWC")
    assert contract.signature.preprocessing == how(channel_order="BGR", resize="letterbox", in_graph=True)
    card = (bundle.folder / "README.md").read_text()
    assert "all but the resizing is done by the model, whose input is the uint8 image" in card


def test_golden_inputs_are_images_and_are_checked(bundles: tuple[Path, Path]) -> None:
    predictor = gauntlet.load(bundles[1])
    case = predictor.bundle.golden()
    assert case.inputs["image"].dtype == np.uint8
    assert max(one.max_rel_error for one in golden_differences(predictor)) == 0
    for name, expected in predictor.bundle.source_golden().outputs.items():
        np.testing.assert_allclose(case.outputs[name], expected, atol=1e-5)


def test_levels_are_normalized_and_an_array_that_may_be_one_image_or_three_is_refused(
    bundles: tuple[Path, Path],
) -> None:
    host, graph = (gauntlet.load(path) for path in bundles)
    for name, expected in graph.run(images(4)).items():
        np.testing.assert_allclose(host.run(images(4))[name], expected, atol=1e-5)
    first = np.moveaxis(images(1)[0], 2, 0)
    with pytest.raises(StageError, match=r"\(3, .*one image with its channels first, or 3 gray ones. Fix: move"):
        host.predict(first)
    assert len(host.predict([*first])) == 3


@pytest.mark.parametrize("size", SIZES)
def test_both_bundles_predict_the_same(bundles: tuple[Path, Path], size: tuple[int, int]) -> None:
    host, graph = (gauntlet.load(path)(png(*size)) for path in bundles)
    assert isinstance(host, ClassPrediction) and isinstance(graph, ClassPrediction)
    scores = [{top.label: top.confidence for top in found.top} for found in (host, graph)]
    assert scores[0] == pytest.approx(scores[1], abs=0.002 if size != SIZES[0] else 1e-6)  # resized ones are rounded


def test_mlflow_loads_it_and_decodes_images(bundles: tuple[Path, Path]) -> None:
    import mlflow
    import pandas as pd

    predictor = gauntlet.load(bundles[1])
    model = mlflow.pyfunc.load_model(str(predictor.bundle.folder))
    [found] = model.predict(pd.DataFrame({"image": [png(*SIZES[1])]}))
    assert found == predictor(png(*SIZES[1])).model_dump(mode="json")


def test_recorded_images_fit_the_network_without_it(bundles: tuple[Path, Path]) -> None:
    host, graph = (Bundle.open(path).contract.signature for path in bundles)
    plain = how(channel_order="BGR")
    fitting = fitting_inputs({"image": images(4)}, host)
    assert np.array_equal(fitting["x"], preprocess_batch(images(4), plain, "NCHW"))
    assert np.array_equal(fitting_inputs({"image": images(4)}, graph)["image"], images(4))


def test_monitoring_measures_the_same_images(bundles: tuple[Path, Path]) -> None:
    host, graph = (Bundle.open(path).contract.signature for path in bundles)
    recorded = {"x": preprocess_batch(images(4), how(channel_order="BGR"), "NCHW")}
    found = input_statistics({"image": images(4)}, graph)
    np.testing.assert_allclose(found, input_statistics(recorded, host), atol=1e-5)
