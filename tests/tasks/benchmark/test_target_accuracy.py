"""Candidates on other targets: measured beside the reference, verified there, or reported with the reason."""

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import faulty_models
import numpy as np
import onnx
import onnx_text
import pytest
from gpu_target import GpuTarget
from pydantic import ValidationError
from validated_target import OfFramework, States

from configs.schema import PipelineConfig
from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Report
from gauntlet.core.signature import signature_from_graph
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.race.contender import Entry, Plan
from gauntlet.race.target_examiner import ModelOnTarget, TargetExaminer
from gauntlet.targets import OrtCpu, by_name
from tasks.accuracy import AccuracyConfig
from tasks.benchmark import BenchmarkConfig, benchmark
from tasks.benchmark.facts import BenchmarkFacts
from tasks.benchmark.other_targets import aa_checks, race_on_target
from tasks.select import Fidelity, SelectConfig, choose

pytestmark = pytest.mark.slow
SIZE = 64
SLOW, FAST = {"kind": "ort-cpu", "level": "off"}, {"kind": "ort-cpu"}


def turning(pairs: int) -> onnx.ModelProto:
    """Return a model that turns its input over and back again, which a session with optimization leaves out."""
    names = ["x", *(f"t{i}" for i in range(2 * pairs))]
    turns = "\n".join(f"{b} = Transpose<perm = [0, 2, 1]>({a})" for a, b in pairwise(names))
    text = f"""
        turning (float[batch,{SIZE},{SIZE}] x) => (float[batch,{SIZE}] y)
        {{
            {turns}
            y = ReduceMax<axes = [2], keepdims = 0>({names[-1]})
        }}
    """
    model = onnx_text.model(text, opset=13)
    signature_from_graph(model).replace(labels=tuple(map(str, range(SIZE)))).write(model)
    return model


@pytest.fixture
def race(workspace: Callable[..., Workspace]) -> Callable[..., Report[BenchmarkFacts]]:
    def run(
        *, outputs_change: bool = False, loud: bool = False, pruned: bool = False, **config: object
    ) -> Report[BenchmarkFacts]:
        out = workspace()
        models: dict[str, Artifact] = {}
        for name, pairs in {"fp32": 40, "candidate": 30}.items():
            onnx.save(turning(pairs), out.folder / f"{name}.onnx")
            models[name] = out.store_file(out.folder / f"{name}.onnx")
        x = np.random.default_rng(0).standard_normal((20, SIZE, SIZE)).astype(np.float32)
        right = x.max(axis=2)
        labels = right.argmax(axis=1)
        before = np.eye(SIZE, dtype=np.float32)[labels] if outputs_change or loud else right
        real = GoldenCase({"x": x[:2]}, {"y": right[:2]})
        np.savez(out.folder / "test.npz", x=-x if outputs_change else x, labels=labels)
        Golden({"real": real}, {"y": before}, labels=labels).save(out.folder / "golden.npz")
        Golden({"real": real}, {"y": right}, labels=labels).save(out.folder / "own.npz")
        settings = {"block_ms": 4, "threads": 1, "timeout_s": 60, "batch_sizes": (1,), "profile": False, "rounds": 6}
        settings |= {"restart_processes": False}
        return benchmark(
            BenchmarkConfig.model_validate(
                settings | {"targets": [SLOW, FAST], "deploy_targets": ["ort-cpu"]} | config
            ),
            out,
            models=models,
            golden=out.store_file(out.folder / "golden.npz"),
            test=out.store_file(out.folder / "test.npz"),
            limits=AccuracyConfig(),
            own_goldens={"candidate": out.store_file(out.folder / "own.npz")} if pruned else {},
        )

    return run


def test_winner_is_shipped_on_a_further_target_when_it_is_fastest_there(race) -> None:
    report = race(early_stopping=False)
    facts = report.facts
    for result in facts.results:
        assert result.target == "ort-cpu"
        assert [row.target for row in result.rows] == ["ort-cpu", "ort-cpu-off"]
        assert facts.session(result.candidate) is None
    known = {name: Fidelity(network="fp32", sqnr_db=100.0) for name in ("candidate",)}
    chosen = choose(SelectConfig(), facts, fidelities=known)[0]
    assert (chosen.target, chosen.session) == ("ort-cpu", None)
    assert chosen.reason.split("; ")[0].endswith("at batch 1, on ort-cpu")
    names = [check.name for one in facts.other_targets if one.validation for check in one.validation.checks]
    assert names.count("accuracy.max_accuracy_drop") == 2
    assert next(check for check in report.checks if check.name == "benchmark.absent_targets").passed


def test_further_target_decides_nothing_when_it_is_no_deployment_target(race) -> None:
    facts = race(deploy_targets=[]).facts
    assert {result.target for result in facts.results} == {"ort-cpu-off"}
    chosen = choose(SelectConfig(), facts)[0]
    assert chosen.target == "ort-cpu-off"
    assert chosen.session is not None
    names = [check.name for one in facts.other_targets if one.validation for check in one.validation.checks]
    assert names, "it was examined all the same"
    assert "accuracy.max_accuracy_drop" not in names


def test_candidate_is_not_raced_where_its_outputs_are_worse(race) -> None:
    report = race(outputs_change=True)
    facts = report.facts
    assert {result.target for result in facts.results} == {"ort-cpu-off"}
    assert all([row.target for row in result.rows] == ["ort-cpu-off"] for result in facts.results)
    for one in facts.other_targets:
        assert one.target == "ort-cpu"
        assert "accuracy.max_accuracy_drop" in str(one.reason)
    warned = [check for check in report.checks if check.name == "accuracy.max_accuracy_drop"]
    assert len(warned) == 2
    assert all(check.severity == "warning" and not check.passed for check in warned)
    assert warned[0].detail.startswith("fp32 on ort-cpu: ")


@pytest.mark.parametrize("pruned", [False, True])
def test_candidate_keeps_its_signal_to_noise_on_the_target_where_it_is_deployed(race, *, pruned: bool) -> None:
    """Every prediction is right, but the outputs are far from the FP32 model's: a pruned network's are its own."""
    found = {one.candidate: one for one in race(loud=True, pruned=pruned).facts.other_targets}
    assert "accuracy.min_sqnr_db" in str(found["fp32"].reason)
    assert "accuracy.max_accuracy_drop" not in str(found["fp32"].reason)
    assert (found["candidate"].status == "measured") == pruned


def test_race_warns_when_a_target_cannot_run_here(race, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / "home"))
    report = race(targets=[SLOW, "openvino-f32"], deploy_targets=["openvino-f32"])
    [check] = [check for check in report.checks if check.name == "benchmark.absent_targets"]
    assert (check.value, check.severity, check.passed) == (1, "warning", False)
    assert check.detail.startswith("openvino-f32: its environment is not installed")
    assert {result.target for result in report.facts.results} == {"ort-cpu-off"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"deploy_targets": ["openvino-f32"]}, "unknown target 'openvino-f32'; available: none"),
        (
            {"targets": ["ort-cpu", "ort-openvino-f32"], "deploy_targets": ["ort-cpu"]},
            "unknown target 'ort-cpu'; available: ort-openvino-f32",
        ),
        (
            {"targets": ["ort-cpu", "torch-eager"], "deploy_targets": ["torch-eager"]},
            "torch-eager does not run ONNX files",
        ),
        (
            {
                "targets": ["ort-cpu", {"kind": "openvino", "properties": {"CACHE_DIR": "c"}}],
                "deploy_targets": ["openvino-f32-CACHE_DIR=c"],
            },
            "openvino-f32-CACHE_DIR=c sets properties.CACHE_DIR, which a bundle may not have; remove either",
        ),
        (
            {"targets": ["ort-cpu", {"kind": "openvino", "env": "/mine"}], "deploy_targets": ["openvino-f32-mine"]},
            "openvino-f32-mine sets env, which a bundle may not have",
        ),
    ],
)
def test_shipping_is_refused_when_it_makes_no_sense(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError) as error:
        BenchmarkConfig.model_validate(settings)
    assert message in str(error.value)


def test_targets_are_compared_at_the_deciding_batch_size() -> None:
    shipped = {"benchmark": {"targets": ["ort-cpu", "openvino-f32"], "deploy_targets": ["openvino-f32"]}}
    config = PipelineConfig.model_validate({"name": "x", **shipped, "select": {"batch": 8}})
    assert config.race.batch_sizes == (8, 1)


PLAN = Plan(batch_sizes=(1,), rounds=6, block_ms=1, threads=1, timeout_s=60, restarts=False)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["ort-cpu", "abacus"], "unknown target 'abacus'; available: ort-cpu"),
        (["openvino-f32"], "the first target must be ort-cpu"),
        (["ort-cpu", "ort-cpu"], "target names must be unique, but ort-cpu is there twice; remove one"),
    ],
)
def test_targets_of_a_run_are_refused_when_they_make_no_sense(targets: list[object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        BenchmarkConfig.model_validate({"targets": targets})


def test_targets_are_named_or_written_out() -> None:
    config = BenchmarkConfig.model_validate({"targets": ["ort-cpu", "openvino-bf16", {"kind": "ort-openvino"}]})
    assert config.targets == (OrtCpu(), by_name("openvino-bf16"), by_name("ort-openvino-f32"))
    assert BenchmarkConfig.model_validate_json(config.model_dump_json()) == config
    assert BenchmarkConfig().targets == (OrtCpu(),)


def test_candidates_are_measured_beside_the_reference_of_the_first_target(
    workspace: Callable[..., Workspace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / "home"))
    out = workspace()
    samples = {"x": np.random.default_rng(0).standard_normal((3, 3, 16, 16), dtype=np.float32)}
    onnx.save(faulty_models.cnn(), out.folder / "model.onnx")
    Golden({"real": GoldenCase(samples, {"y": np.ones((3, 10))})}, {"y": np.ones((3, 10))}).save(
        out.folder / "golden.npz"
    )
    golden, model = out.store_file(out.folder / "golden.npz"), out.store_file(out.folder / "model.onnx")
    config = BenchmarkConfig.model_validate(
        {
            "targets": ["ort-cpu", {"kind": "ort-cpu", "spinning": False}, "openvino-f32"],
            "rounds": 6, "block_ms": 1, "threads": 1, "batch_sizes": [1], "profile": False, "restart_processes": False,
        }
    )  # fmt: skip
    models: dict[str, Artifact] = {"fp32": model, "twin": model}
    report = benchmark(config, out, models=models, golden=golden)
    facts = report.facts
    for result in facts.results:
        assert [row.target for row in result.rows] == ["ort-cpu", "ort-cpu-nospin"]
    assert facts.result("fp32").rows[0].verdict == "reference"
    assert facts.result("fp32").rows[1].verdict != "reference"  # FP32 on another target
    absent = [one for one in facts.other_targets if one.target == "openvino-f32"]
    assert [one.candidate for one in absent] == ["fp32", "twin"]
    assert all("gauntlet targets install openvino" in one.reason for one in absent)
    checks = [check.detail for check in report.checks if check.name == "benchmark.max_aa_deviation"]
    assert ["in the race on ort-cpu-nospin" in detail for detail in checks] == [False, True]


def go(tmp_path: Path, target) -> ModelOnTarget:
    np.savez(tmp_path / "in.npz", x=np.ones((3, 3, 16, 16), np.float32))
    onnx.save(faulty_models.cnn(), tmp_path / "cnn.onnx")
    model = tmp_path / "cnn.onnx"
    examiner = TargetExaminer.from_models({"fp32": model}, tmp_path / "in.npz", PLAN)
    [found] = race_on_target(target, examiner, Entry(model), resolution=0.01, on_round=lambda _: None)[0]
    return found


def test_candidate_loses_its_rows_where_cuda_was_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if GpuTarget().unavailable() is None:
        pytest.skip("CUDA runs here")
    monkeypatch.setattr(GpuTarget, "unavailable", lambda _: None)
    found = go(tmp_path, GpuTarget())
    assert found.rows == ()
    check = found.check
    assert (check.name, check.passed, check.severity) == ("target.macs_share", False, "warning")
    assert check.detail.startswith("fp32 on gpu: ")


def test_race_on_another_target_has_a_control_of_its_own(tmp_path: Path) -> None:
    found = go(tmp_path, OrtCpu(spinning=False))
    assert (found.status, found.reason) == ("measured", "")
    assert 0 <= found.aa_deviation < 10
    [check] = aa_checks([found, found.replace(candidate="twin")], limit=found.aa_deviation / 2)
    assert (check.name, check.passed, check.severity) == ("benchmark.max_aa_deviation", False, "warning")
    assert check.detail.startswith("the FP32 model against itself in the race on ort-cpu-nospin; ")
    assert aa_checks([found], limit=found.aa_deviation)[0].passed
    assert aa_checks([found.replace(aa_deviation=math.nan)], limit=9)[0].passed is False
    assert aa_checks([found.replace(aa_deviation=None)], limit=9) == ()


@pytest.mark.parametrize(
    ("target", "message"),
    [(OfFramework(), "gauntlet bench --framework-model"), (States(label="int8"), "runs only quantized models")],
    ids=lambda value: getattr(value, "name", ""),
)
def test_candidate_is_not_raced_where_it_does_not_belong(tmp_path, target, message, monkeypatch) -> None:
    monkeypatch.setattr(type(target), "unavailable", lambda _: None)
    found = go(tmp_path, target)
    assert found.status == "not applicable"
    assert message in found.reason
    assert found.rows == ()
