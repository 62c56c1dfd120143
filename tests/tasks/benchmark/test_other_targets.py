"""Candidates on other targets: measured against the reference, or reported with the reason why not."""

import math
from collections.abc import Callable
from pathlib import Path

import faulty_models
import numpy as np
import onnx
import pytest
from gpu_target import GpuTarget
from pydantic import ValidationError
from validated_target import OfFramework, States

from gauntlet.core.artifact import Artifact
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.race.contender import Entry, Plan
from gauntlet.race.target_examiner import ModelOnTarget, TargetExaminer
from gauntlet.targets import OrtCpu, by_name
from tasks.benchmark import BenchmarkConfig, benchmark
from tasks.benchmark.other_targets import aa_checks, race_on_target

PLAN = Plan(batch_sizes=(1,), rounds=6, block_ms=1, threads=1, timeout_s=60, restarts=False)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["ort-cpu", "abacus"], "unknown target 'abacus'; available: ort-cpu"),
        (["openvino-f32"], "the first target must be ort-cpu"),
        (["ort-cpu", "ort-cpu"], "target names must be unique"),
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


@pytest.mark.slow
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


@pytest.mark.slow
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
