"""MLPerf's LoadGen really runs here, for a fraction of a second each time: its verdict is the gate."""

import math
from collections.abc import Callable
from importlib.util import find_spec

import needs
import numpy as np
import onnx
import onnx_text
import pytest

from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import GateFailed, StageError
from gauntlet.core.report import Report
from gauntlet.core.workspace import Workspace
from gauntlet.runtime.session import open_session
from serving.stages.loadgen import LoadGenFacts, Scenario, loadgen
from wings.providers.accelerators import OrtCuda

pytestmark = pytest.mark.slow
if find_spec("mlperf_loadgen") is None:
    needs.missing("mlperf_loadgen is not installed; install it with: make loadgen")

QUICK = {"min_duration_s": 0.2, "timeout_s": 60, "threads": 1}
Run = Callable[..., Report[LoadGenFacts]]


@pytest.fixture
def run(trained, workspace: Callable[..., Workspace]) -> Run:
    def go(*scenarios: dict[str, object], model: Artifact | None = None) -> Report[LoadGenFacts]:
        config = tuple(Scenario.model_validate(QUICK | scenario) for scenario in scenarios)
        out = workspace(trained.store)
        return loadgen(config, out, model=model or trained.model, test=trained.test, golden=trained.golden)

    return go


@pytest.mark.parametrize("names", [("SingleStream", "Offline"), ("SingleStream", "MultiStream", "Server", "Offline")])
def test_loadgen_is_valid_when_the_model_is_sound(run: Run, names: tuple[str, ...]) -> None:
    report = run(*({"scenario": name} for name in names))
    report.raise_if_blocked()
    results = {result.scenario: result for result in report.facts.results}
    assert tuple(results) == names
    assert [check.name for check in report.checks] == ["loadgen.valid"] * len(names)
    for result in results.values():
        assert result.valid
        assert result.unmet_conditions == ()
        assert math.isfinite(result.value)
        assert result.value > 0
    single = results["SingleStream"].figures
    assert single["result_50.00_percentile_latency_ns"] <= single["result_90.00_percentile_latency_ns"]
    assert report.artifacts.keys() == {f"log_{number}" for number in range(len(names))}


def test_loadgen_asks_the_model_where_it_is_to_be_run(trained, workspace: Callable[..., Workspace]) -> None:
    if OrtCuda().unavailable() is None:
        pytest.skip("CUDA runs here")
    out, config = workspace(trained.store), (Scenario.model_validate(QUICK | {"scenario": "SingleStream"}),)
    with pytest.raises(StageError, match="the session asked for CUDAExecutionProvider and got CPUExecutionProvider"):
        loadgen(config, out, model=trained.model, test=trained.test, golden=trained.golden, target=OrtCuda())


def test_gate_says_no_when_the_server_cannot_keep_up(run: Run) -> None:
    report = run({"scenario": "Server", "target_qps": 1000, "target_latency_ms": 0.001, "min_queries": 100})
    assert report.facts.results[0].valid is False
    assert "performance constraints not met" in report.facts.results[0].unmet_conditions
    with pytest.raises(GateFailed, match=r"loadgen\.valid: .*LoadGen says INVALID: .*performance constraints not met"):
        report.raise_if_blocked()


@pytest.mark.parametrize("scenario", ["SingleStream", "Offline"])
def test_accuracy_is_the_models_own_when_loadgen_notes_the_answers_down(run: Run, trained, scenario: str) -> None:
    report = run({"scenario": scenario, "mode": "accuracy", "min_accuracy": 0.5})
    report.raise_if_blocked()
    with np.load(trained.store.path(trained.test)) as file:
        samples = {name: file[name] for name in file.files if name != "labels"}
        labels = file["labels"]
    answers = open_session(trained.path).run(None, samples)[0]
    scores = report.facts.results[0].scores
    assert scores.samples == len(labels)
    assert scores.accuracy == pytest.approx(np.mean(answers.argmax(1) == labels), abs=1 / len(labels))
    assert scores.top1_agreement > 0.99


def test_gate_says_no_when_the_answers_are_wrong(run: Run, trained, workspace: Callable[..., Workspace]) -> None:
    proto = trained.proto()
    output = proto.graph.output[0].name
    for node in proto.graph.node:
        node.output[:] = ["right" if name == output else name for name in node.output]
    onnx_text.extend(proto, f"{{ {output} = Neg(right) }}")
    out = workspace(trained.store)
    onnx.save(proto, out.folder / "wrong.onnx")
    report = run(
        {"scenario": "Offline", "mode": "accuracy", "min_accuracy": 0.9},
        model=out.store_file(out.folder / "wrong.onnx"),
    )
    with pytest.raises(GateFailed, match=r"loadgen\.min_accuracy"):
        report.raise_if_blocked()


def test_stage_ends_loadgen_when_the_model_hangs(run: Run, trained, workspace: Callable[..., Workspace]) -> None:
    """A loop of ten thousand million turns: nobody waits for it."""
    model = onnx_text.model("""
        endless (float[n,3,32,32] input) => (float[n,3,32,32] y)
        <int64 turns = {10000000000}, bool go = {1}>
        {
            y = Loop(turns, go, input) <
                body = body (int64 i, bool c, float[] v) => (bool c_out, float[] v_out) {
                    c_out = Identity(c)
                    v_out = Identity(v)
                }
            >
        }
    """)
    out = workspace(trained.store)
    onnx.save(model, out.folder / "endless.onnx")
    with pytest.raises(StageError, match="LoadGen, Offline: timed out after 2 s"):
        run({"scenario": "Offline", "timeout_s": 2}, model=out.store_file(out.folder / "endless.onnx"))
