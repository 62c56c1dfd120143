"""Models that nobody here trained, through the whole pipeline, with nothing but a preset."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import mlflow
import numpy as np
import pretrained_models
import pytest
from mlflow import MlflowClient
from pretrained_models import MODELS, Made

from configs.loader import load
from configs.schema import PipelineConfig
from flows.record.home import Home
from flows.record.journal import everything_sent
from flows.tracking.server import tracking_uri
from gauntlet.core.run_report import RunReport
from tasks.repair import REPAIRED

QUICK = ("benchmark.rounds=6", "benchmark.block_ms=2", "benchmark.batch_sizes=[1]", "numerics.samples=8")
Run = Callable[[PipelineConfig], RunReport]


def brought(model: Path, samples: dict[str, np.ndarray], *settings: str) -> PipelineConfig:
    np.savez(model.with_name("samples.npz"), **samples)
    data = (f"train.model={model}", f"data.path={model.with_name('samples.npz')}")
    return load("bring-your-own-onnx", (*QUICK, *data, *settings))


@pytest.mark.slow
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_brought_model_ends_with_a_winner_when_it_is_sound(
    run: Run, tmp_path: Path, make: Callable[[Path], Made]
) -> None:
    report = run(brought(*make(tmp_path)))
    assert (report.verdict, report.stopped_at) == ("passed", None), report.reason
    assert report.winner is not None
    assert {c.name for c in report.candidates if not c.name.endswith(REPAIRED)} == {
        "fp32",
        "passes",
        "ort-extended",
        "static-u8s8",
        "dynamic-u8",
    }
    assert all(c.reason for c in report.candidates)
    chain = report.stage("optimize", "passes")
    assert chain is not None
    for facts in chain.facts["passes"]:  # none of them takes every model
        assert facts["outcome"] != "rejected" or facts["reason"]
        assert not facts["broke"] or facts["artifact"] in chain.artifacts
    if not any(check.blocks for check in chain.checks):
        proof = report.stage("numerics", "passes")
        assert proof is not None
        assert not any(check.blocks for check in proof.checks)
    if make is pretrained_models.text_labels:
        reasons = {c.name: c.reason for c in report.candidates}
        assert "nothing to quantize among LinearClassifier, ZipMap" in reasons["static-u8s8"]
        assert report.winner == "fp32"


@pytest.mark.slow
def test_model_without_samples_runs_on_random_ones(run: Run, tmp_path: Path) -> None:
    model, _ = pretrained_models.two_inputs(tmp_path)
    synthetic = f"data={{kind: synthetic, model: {model}, samples: 30}}"
    few = ("optimize=[]", "quantize=[{kind: dynamic}]")
    report = run(load("bring-your-own-onnx", (*QUICK, *few, f"train.model={model}", synthetic)))
    assert report.verdict == "passed", report.reason
    assert report.candidates[0].accuracy is None
    checks = {check.name for entry in report.stages for check in entry.checks if entry.stage == "accuracy"}
    assert checks == {"accuracy.min_top1_agreement", "accuracy.min_cosine", "accuracy.min_sqnr_db"}


@pytest.mark.slow
def test_labels_decide_when_there_are_some(run: Run, tmp_path: Path) -> None:
    model, samples = pretrained_models.two_inputs(tmp_path)
    labels = np.arange(pretrained_models.COUNT) % 4
    report = run(brought(model, {**samples, "labels": labels}))
    assert (report.verdict, report.stopped_at) == ("failed", "evaluate")
    assert "evaluate.min_accuracy" in report.reason


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """A folder whose content is gone after the test: pytest would keep the gigabytes of three runs."""
    yield tmp_path
    for place in tmp_path.iterdir():
        shutil.rmtree(place) if place.is_dir() else place.unlink()


@pytest.mark.slow
@pytest.mark.timeout(1400)
def test_model_above_two_gigabytes_ends_with_a_winner_and_is_whole_in_mlflow(run: Run, home: Home, room: Path) -> None:
    model, samples = pretrained_models.above_two_gigabytes(room)
    few = (
        "optimize=[{kind: chain}]",
        "quantize=[{kind: dynamic}]",
        "numerics.batch_sizes=[1, 3]",
        "benchmark.profile=false",
    )
    report = run(brought(model, samples, *few))
    assert report.verdict == "passed", report.reason
    sizes = {c.name: c.size_bytes for c in report.candidates}
    assert set(sizes) == {"fp32", "passes", "dynamic-u8"}
    assert sizes["fp32"] > 2**31
    assert sizes["dynamic-u8"] < sizes["fp32"] / 3.5
    chain = report.stage("optimize", "passes")
    assert chain is not None
    passes = [(facts["name"], facts["outcome"], facts["broke"]) for facts in chain.facts["passes"]]
    assert passes[0] == ("onnxsim", "accepted", "")  # the node that does nothing is gone, and the others find no more
    assert passes[1:] == [(n, "unchanged", "") for n in ("onnxslim", "onnxscript", "onnxoptimizer", "ort-basic")]
    assert everything_sent(home.runs / report.run_id)
    client = MlflowClient(home.mlflow_uri)
    (kept,) = client.search_logged_models(["1"], "name = 'bring-your-own-onnx-fp32'")
    with tracking_uri(home.mlflow_uri):
        loaded = mlflow.pyfunc.load_model(f"models:/{kept.model_id}")
    x = samples["x"][:2]
    np.testing.assert_allclose(loaded.predict({"x": x})["y"], 4 * x, rtol=1e-5)
