"""Models that nobody here trained, old and quantized ones too, through the whole pipeline with nothing but a preset."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import mlflow
import numpy as np
import onnx
import onnx_text
import onnxruntime as ort
import pretrained_models
import pytest
from harness import SHORT
from mlflow import MlflowClient
from onnx import TensorProto, helper, numpy_helper
from pretrained_models import Made
from sklearn.metrics import log_loss, roc_auc_score

from configs.loader import load
from configs.schema import PipelineConfig
from flows.record.home import Home
from flows.record.journal import everything_sent
from flows.tracking.server import tracking_uri
from gauntlet.core.run_report import RunReport
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import read_npz_split
from tasks.accuracy import AccuracyConfig, accuracy

QUICK = (*SHORT, "quantize=[{kind: static}, {kind: dynamic}]")
FORMS = (pretrained_models.external_data, pretrained_models.text_labels)
"""What exporters seldom write."""
Run = Callable[[PipelineConfig], RunReport]


def brought(model: Path, samples: dict[str, np.ndarray], *settings: str) -> PipelineConfig:
    np.savez(model.with_name("samples.npz"), **samples)
    data = (f"train.model={model}", f"data.path={model.with_name('samples.npz')}")
    return load("bring-your-own-onnx", (*QUICK, *data, *settings))


@pytest.mark.slow
@pytest.mark.parametrize("make", FORMS, ids=lambda make: make.__name__)
def test_brought_model_ends_with_a_winner_when_it_is_sound(
    run: Run, tmp_path: Path, make: Callable[[Path], Made]
) -> None:
    report = run(brought(*make(tmp_path)))
    assert (report.verdict, report.stopped_at) == ("passed", None), report.reason
    assert report.winner is not None
    expected = {"fp32", "passes", "ort-extended", "static-u8s8", "dynamic-u8"}
    assert {c.name for c in report.candidates} - {"normalized"} == expected
    assert all(c.reason for c in report.candidates)
    chain = report.stage("optimize", "passes")
    for facts in chain.facts["passes"]:  # none of them takes every model
        assert facts["outcome"] != "rejected" or facts["reason"]
    statuses = {candidate.name: candidate.status for candidate in report.candidates}
    if not any(check.blocks for check in chain.checks) and statuses["passes"] != "unchanged":
        proof = report.stage("numerics", "passes")
        assert not any(check.blocks for check in proof.checks)
    if make is pretrained_models.text_labels:
        reasons = {c.name: c.reason for c in report.candidates}
        assert "nothing to quantize among LinearClassifier, ZipMap" in reasons["static-u8s8"]
        assert report.winner == "fp32"


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """A folder whose content is gone after the test: pytest would keep the gigabytes of three runs."""
    yield tmp_path
    for place in tmp_path.iterdir():
        shutil.rmtree(place) if place.is_dir() else place.unlink()


@pytest.mark.nightly  # minutes of processor time, and gigabytes of disk
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
    passes = [(facts["name"], facts["outcome"], facts["broke"]) for facts in chain.facts["passes"]]
    assert passes[0] == ("onnxsim", "accepted", "")  # the node that does nothing is gone, and the others find no more
    others = ("fold-affine", "onnxslim", "onnxscript", "onnxoptimizer", "pad-channels", "ort-basic")
    assert passes[1:] == [(name, "unchanged", "") for name in others]
    assert everything_sent(home.runs / report.run_id)
    client = MlflowClient(home.mlflow_uri)
    (kept,) = client.search_logged_models(["1"], "name = 'bring-your-own-onnx-fp32'")
    with tracking_uri(home.mlflow_uri):
        loaded = mlflow.pyfunc.load_model(f"models:/{kept.model_id}")
    x = samples["x"][:2]
    np.testing.assert_allclose(loaded.predict({"x": x})["y"], 4 * x, rtol=1e-5)


REGRESSOR = """regressor (float[n,12] x) => (float[n,2] y) <float[12,32] w, float[32,2] v> {
    h = MatMul(x, w)
    r = Relu(h)
    y = MatMul(r, v)
}"""


@pytest.mark.slow
def test_brought_model_is_judged_by_the_metric_of_its_problem(run: Run, home: Home, tmp_path: Path) -> None:
    """The labels alone say what the problem is; they are the model's own outputs with some noise."""
    proto, rng = onnx_text.model(REGRESSOR), np.random.default_rng(0)
    onnx.save(proto, tmp_path / "model.onnx")
    x = rng.normal(size=(120, 12)).astype(np.float32)
    (y,) = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    labels = y + rng.normal(scale=0.05 * y.std(), size=y.shape).astype(np.float32)
    report = run(brought(tmp_path / "model.onnx", {"x": x, "labels": labels}, "evaluate.min_score=0.5", "optimize=[]"))
    assert (report.verdict, report.metric) == ("passed", "r2"), report.reason
    scores = {c.name: c.accuracy for c in report.candidates}
    assert 0.9 < scores["fp32"] < 1
    assert scores["static-u8s8"] == pytest.approx(scores["fp32"], abs=0.1)
    checks = [check.name for check in report.stage("evaluate").checks]
    assert checks == ["evaluate.min_score", "evaluate.labels_fit"]
    assert report.stage("accuracy", "static-u8s8").facts["change"]["metric"] == "r2"
    (parent,) = MlflowClient(home.mlflow_uri).search_runs(["1"], filter_string="tags.stage = 'pipeline'")
    assert {"quality.r2", "best.quality.r2"} <= parent.data.metrics.keys()


CLICKS = """clicks (float[n,6] x) => (float[n,1] p) <float[6,1] w> {
    z = MatMul(x, w)
    p = Sigmoid(z)
}"""


@pytest.mark.slow
def test_probability_of_two_classes_is_scored_as_the_winner_s_own_outputs(
    run: Run, home: Home, tmp_path: Path, workspace: Callable[..., Workspace]
) -> None:
    """As scikit-learn scores them; a candidate that states too little, or of the other class, is refused."""
    proto, rng = onnx_text.model(CLICKS), np.random.default_rng(0)
    onnx.save(proto, tmp_path / "model.onnx")
    x = rng.normal(size=(600, 6)).astype(np.float32)
    (clicked,) = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    labels = (rng.random(600) < clicked[:, 0]).astype(int)
    few = ("optimize=[]", "quantize=[]", "evaluate.min_accuracy=0.6")
    report = run(brought(tmp_path / "model.onnx", {"x": x, "labels": labels}, *few))
    assert report.verdict == "passed", report.reason
    winner = home.store.path(next(c.artifact for c in report.candidates if c.name == report.winner and c.artifact))
    stored, facts = report.stage("data").artifacts["test"], report.stage("evaluate").facts
    test = read_npz_split(home.store.path(stored))
    (p,) = ort.InferenceSession(winner).run(None, test.inputs)
    assert facts["ranking"]["macro_roc_auc"] == pytest.approx(roc_auc_score(test.labels, p[:, 0]), abs=1e-6)
    assert facts["calibration"]["before"]["log_loss"] == pytest.approx(log_loss(test.labels, p[:, 0]), rel=1e-5)
    for factor, refused in ((1, set()), (0.1, {"min_sqnr_db"}), (-1, {"max_accuracy_drop", "max_ranking_drop"})):
        damaged, out = onnx.load(winner), workspace(home.store)
        onnx_text.extend(damaged, "{ t = Mul(z, k) }", 1, {"k": np.float32(factor)})
        damaged.graph.node[-1].input[0] = "t"
        onnx.save(damaged, out.folder / "damaged.onnx")
        artifacts = {"golden": report.stage("train").artifacts["golden"], "test": stored}
        judged = accuracy(AccuracyConfig(), out, model=out.store_file(out.folder / "damaged.onnx"), **artifacts)
        assert refused <= (found := {check.name.removeprefix("accuracy.") for check in judged.failures}), found
        assert bool(found) is bool(refused)


COUNT = 24


def brought_proto(folder: Path, proto: onnx.ModelProto, samples: dict[str, np.ndarray]) -> PipelineConfig:
    onnx.save(proto, folder / "brought.onnx")
    return brought(folder / "brought.onnx", samples, "optimize=[]")


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(11).standard_normal((COUNT, *shape)).astype(np.float32)


def opset_11() -> onnx.ModelProto:
    """The first weight is a Constant node, the second an input; the batch is 1."""
    proto = onnx_text.model(
        """
        old (float[1,32] x) => (float[1,10] y) <float[64,10] v>
        {
            w = Constant<value_float = 1.0>()
            h = MatMul(x, w)
            r = Relu(h)
            y = MatMul(r, v)
        }
        """,
        opset=12,
        ir_version=3,
    )
    weight = numpy_helper.from_array(np.random.default_rng(1).standard_normal((32, 64)).astype(np.float32) / 6)
    proto.graph.node[0].attribute[0].CopyFrom(helper.make_attribute("value", weight))
    proto.graph.input.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, [64, 10]))
    return proto


@pytest.mark.slow
def test_old_model_reaches_the_race_with_every_recipe(run: Run, tmp_path: Path) -> None:
    report = run(brought_proto(tmp_path, opset_11(), {"x": floats(32)}))
    assert report.verdict == "passed", report.reason
    stages = [entry.stage for entry in report.stages if entry.candidate is None]
    assert stages[1:5] == ["train", "export", "normalize", "structure"]
    normalized = report.stage("normalize")
    assert (normalized.facts["opset_before"], normalized.facts["opset_after"]) == (12, 17)
    made = {c.name: c for c in report.candidates}
    assert set(made) >= {"fp32", "static-u8s8", "dynamic-u8"}
    for name in ("static-u8s8", "dynamic-u8"):
        assert report.stage("accuracy", name) is not None, made[name].reason
    reference = made["fp32"].artifact
    assert reference is not None
    assert reference != normalized.artifacts["normalized"]  # the file as it came is what is raced against


@pytest.mark.slow
def test_recipes_are_dropped_with_a_reason_when_the_model_is_quantized_already(run: Run, tmp_path: Path) -> None:
    proto = onnx_text.model(
        """
        quantized (float[n,32] x) => (float[n,10] y)
        <float s = {0.05}, uint8 z = {128}, int8[32,10] w, float ws = {0.01}, int8 wz = {0}>
        {
            q = QuantizeLinear(x, s, z)
            d = DequantizeLinear(q, s, z)
            v = DequantizeLinear(w, ws, wz)
            y = MatMul(d, v)
        }
        """,
        {"w": np.random.default_rng(2).integers(-100, 100, (32, 10))},
        opset=13,
    )
    report = run(brought_proto(tmp_path, proto, {"x": floats(32)}))
    assert (report.verdict, report.winner) == ("passed", "fp32"), report.reason
    reasons = {c.name: c.reason for c in report.candidates if c.name != "fp32"}
    for name in ("static-u8s8", "dynamic-u8"):
        assert "this one is not: it has 2 DequantizeLinear, 1 QuantizeLinear nodes" in reasons[name]
