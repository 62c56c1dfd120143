"""A detector goes from generated scenes to a bundle that finds objects in images of any size."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from configs.loader import load
from configs.schema import PipelineConfig
from flows.cli.main import main
from gauntlet.core.run_report import RunReport

Run = Callable[[PipelineConfig], RunReport]
SMALL = (
    "data.image_size=48",
    "data.digit_size=[16, 24]",
    "data.max_digits=3",
    "data.train_images=240",
    "data.validation_images=20",
    "data.calibration_images=20",
    "data.test_images=40",
    "train.epochs=4",
    "optimize=[]",
    "quantize=[{kind: static, reduce_range: true}]",  # as much noise on every processor
    "repair.enabled=false",
    "numerics.samples=8",
    "accuracy.max_accuracy_drop=1",
    "benchmark.batch_sizes=[1]",
    "benchmark.rounds=6",
    "benchmark.block_ms=5",
    "benchmark.restart_processes=false",
)


@pytest.mark.slow
def test_detector_is_stopped_by_its_precision_and_else_ends_as_a_bundle(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = run(load("digits-detection", (*SMALL, "evaluate.min_score=0.99")))
    assert (stopped.verdict, stopped.stopped_at) == ("failed", "evaluate")
    assert "evaluate.min_score" in stopped.reason
    report = run(load("digits-detection", (*SMALL, "evaluate.min_score=0", "evaluate.max_generalization_gap=1")))
    assert (report.verdict, report.metric) == ("passed", "map"), report.reason
    accuracy = report.stage("accuracy", "static-u8s8-7bit")
    assert accuracy is not None
    assert set(accuracy.facts["scores"]) == {"map", "map_50"}
    assert {"before", "after", "drop_low", "drop_high"} <= accuracy.facts["loss"].keys()
    bundle, drawn = tmp_path / "detector.zip", tmp_path / "drawn"
    assert main(["bundle", "--out", str(bundle)]) == 0
    image = tmp_path / "image.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 120, 3), np.uint8)).save(image)
    capsys.readouterr()
    assert main(["predict", str(bundle), str(image), "--json", "--draw", str(drawn)]) == 0
    found = json.loads(capsys.readouterr().out)["prediction"]["boxes"]
    assert all(0 <= box["left"] < box["right"] <= 120 and 0 <= box["top"] < box["bottom"] <= 90 for box in found)
    assert Image.open(drawn / "image.png.png").width == 3 * 120
