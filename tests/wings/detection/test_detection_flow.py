"""A detector and a segmenter go from generated scenes to bundles that predict for images of any size."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import FEW_SCENES, RACE, WITHOUT_REPAIR
from PIL import Image

from configs.loader import load
from configs.schema import PipelineConfig
from flows.cli.main import main
from flows.record.home import Home
from gauntlet.core.run_report import RunReport

LENIENT = ("evaluate.min_score=0", "evaluate.max_generalization_gap=1")
Run = Callable[[PipelineConfig], RunReport]
SMALL = (
    *FEW_SCENES,
    "train.epochs=4",
    "optimize=[]",
    "quantize=[{kind: static, reduce_range: true}]",  # as much noise on every processor
    *WITHOUT_REPAIR,
    "numerics.samples=8",
    "accuracy.max_accuracy_drop=1",
    *RACE,
)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image of 120x90 pixels."""
    path = tmp_path / "image.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 120, 3), np.uint8)).save(path)
    return path


def predicted(image: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return what the bundle of the latest run predicts for an image; it is drawn in the folder `drawn`, too."""
    bundle = folder / "model.zip"
    assert main(["bundle", "--out", str(bundle)]) == 0
    capsys.readouterr()
    assert main(["predict", str(bundle), str(image), "--json", "--draw", str(folder / "drawn")]) == 0
    assert Image.open(folder / "drawn" / "image.png.png").width == 3 * 120
    prediction: dict[str, Any] = json.loads(capsys.readouterr().out)["prediction"]
    return prediction


def shows_drawings(report: RunReport) -> bool:
    """Whether the page of a run shows test images with the predictions of its reference or its winner."""
    page = (Home.find().runs / report.run_id / "report.html").read_text(encoding="utf-8")
    return 'id="drawings"' in page and "data:image/jpeg;base64," in page


@pytest.mark.slow
def test_detector_is_stopped_by_its_precision_and_else_ends_as_a_bundle(
    run: Run, tmp_path: Path, image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = run(load("digits-detection", (*SMALL, "evaluate.min_score=0.99")))
    assert (stopped.verdict, stopped.stopped_at) == ("failed", "evaluate")
    assert "evaluate.min_score" in stopped.reason
    report = run(load("digits-detection", (*SMALL, *LENIENT)))
    assert (report.verdict, report.metric) == ("passed", "map"), report.reason
    accuracy = report.stage("accuracy", "static-u8s8-no-overflow")
    assert set(accuracy.facts["scores"]) == {"map", "map_50"}
    assert {"before", "after", "low", "high"} <= accuracy.facts["change"].keys()
    assert shows_drawings(report)
    found = predicted(image, tmp_path, capsys)["boxes"]
    assert all(0 <= box["left"] < box["right"] <= 120 and 0 <= box["top"] < box["bottom"] <= 90 for box in found)


@pytest.mark.nightly
def test_segmenter_ends_as_a_bundle_that_tells_the_class_of_each_pixel(
    run: Run, tmp_path: Path, image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = run(load("digits-segmentation", (*SMALL, *LENIENT)))
    assert (report.verdict, report.metric) == ("passed", "miou"), report.reason
    accuracy = report.stage("accuracy", "static-u8s8-no-overflow")
    assert set(accuracy.facts["scores"]) == {"miou", "pixel_accuracy"}
    assert shows_drawings(report)
    prediction = predicted(image, tmp_path, capsys)
    assert np.shape(prediction["mask"]) == (48, 48)
    assert sum(prediction["shares"].values()) == pytest.approx(1)
