"""Targets on other machines: what a configuration may ask for, and what the stage says of the races that came back."""

from collections.abc import Callable
from pathlib import Path

import pytest
import remote_facts
from pydantic import ValidationError

from configs.loader import load
from configs.schema import PipelineConfig
from flows.tracking.metric_names import finite
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import ConfigError
from gauntlet.core.run_report import speed_metrics
from gauntlet.core.workspace import Workspace
from gauntlet.targets import OrtCpu, with_options
from tasks.benchmark import BenchmarkConfig
from wings.machines.library.remote import RemoteFacts, plan_for, remote
from wings.providers.openvino import OpenVino

ROWS = Artifact(name="race.json", sha256="ab", size_bytes=9, path="ab/ab-race.json/race.json")


def test_same_target_here_and_on_two_pools_has_three_names() -> None:
    targets = ["ort-cpu", {"kind": "openvino"}, *({"kind": "openvino", "on": pool} for pool in ("jetson", "gpu"))]
    config = BenchmarkConfig.model_validate({"targets": targets})
    assert [target.name for target in config.other_targets] == ["openvino-f32"]
    assert [target.name for target in config.remote_targets] == ["openvino-f32-on-jetson", "openvino-f32-on-gpu"]
    assert BenchmarkConfig.model_validate_json(config.model_dump_json()) == config


def test_plan_for_another_machine_has_its_target_and_the_settings_of_the_race() -> None:
    target = OpenVino(on="jetson")
    config = BenchmarkConfig(targets=(OrtCpu(), OpenVino(), target), deploy_targets=("openvino-f32",), rounds=9)
    plan = plan_for(config, target)
    assert (plan.targets, plan.deploy_targets, plan.rounds, plan.profile) == ((OrtCpu(), target), (), 9, False)
    assert BenchmarkConfig.model_validate_json(plan.model_dump_json()) == plan


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"targets": [{"kind": "ort-cpu", "on": "gpu"}]}, "must be ort-cpu on this machine.*got ort-cpu-on-gpu"),
        (
            {"targets": ["ort-cpu", {"kind": "openvino", "on": "gpu"}], "deploy_targets": ["openvino-f32-on-gpu"]},
            "openvino-f32-on-gpu races on a machine of the work pool 'gpu'.*run the pipeline on that machine",
        ),
        ({"session_variants": [{"on": "gpu", "threads": 1}]}, "session_variants run on this machine"),
        ({"targets": ["ort-cpu", {"kind": "openvino", "on": "a b"}]}, "on\n.*should match pattern"),
        ({"remote_timeout_s": 0}, "greater than 0"),
    ],
)
def test_benchmark_refuses_what_only_one_machine_can_do(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=f"(?s){message}"):
        BenchmarkConfig.model_validate(settings)


def test_files_of_this_machine_do_not_travel() -> None:
    benchmark = {"targets": ["ort-cpu", {"kind": "ort-cpu", "on": "gpu"}]}
    with pytest.raises(ValidationError, match=r"operator_libraries are files of this machine.*'ort-cpu-on-gpu'"):
        PipelineConfig.model_validate({"name": "x", "benchmark": benchmark, "operator_libraries": ["/lib/ops.so"]})


def test_command_refuses_a_target_on_another_machine() -> None:
    with pytest.raises(ConfigError, match="target openvino: on: a command races on its own machine"):
        with_options({"kind": "openvino", "on": "gpu"})


def test_gate_warns_of_what_is_missing_and_of_a_noisy_machine(workspace: Callable[..., Workspace]) -> None:
    config, rows = BenchmarkConfig(max_aa_deviation=0.01), {remote_facts.ON_ORIN.name: ROWS}
    report = remote(config, workspace(), races=remote_facts.all_races(), rows=rows)
    noise, absent, failed = report.checks
    assert (noise.name, noise.value, noise.passed) == ("benchmark.max_aa_deviation", 0.012, False)
    assert "in the race on ort-cpu-nospin-on-jetson" in noise.detail
    assert (absent.name, absent.value) == ("remote.absent_targets", 1)
    assert absent.detail == "openvino-f32-on-gpu: no worker of the work pool 'gpu' is alive"
    assert "gauntlet worker --pool" in absent.remedy
    assert (failed.name, failed.value, failed.detail) == (
        "remote.failed_targets",
        1,
        "ort-cpu-on-shelf: its worker was lost",
    )
    assert {check.severity for check in report.checks} == {"warning"}
    assert report.timed  # never served from the cache
    assert report.artifacts == {"rows_ort-cpu-nospin-on-jetson": ROWS}


def test_gate_passes_where_all_raced_on_quiet_machines(workspace: Callable[..., Workspace]) -> None:
    report = remote(BenchmarkConfig(), workspace(), races=(remote_facts.raced(),), rows={})
    assert [check.passed for check in report.checks] == [True, True, True]


def test_rows_of_other_machines_never_have_the_names_of_rows_here() -> None:
    races = remote_facts.all_races()
    metrics = RemoteFacts(races=races).candidate_metrics()
    assert remote_facts.ON_ORIN.name.endswith("-on-jetson")
    row = races[0].results[1].rows[0]
    assert finite(metrics["int8"]) == {
        f"latency.{remote_facts.ON_ORIN.name}.b1.p50_ms": row.median_ms,
        f"speedup.{remote_facts.ON_ORIN.name}.b1": row.speedup,
        f"speedup.{remote_facts.ON_ORIN.name}.b1.low": row.speedup_low,
        f"speedup.{remote_facts.ON_ORIN.name}.b1.high": row.speedup_high,
    }
    assert metrics["fp32"].keys() == metrics["int8"].keys()
    assert speed_metrics((row,))["latency.b1.p50_ms"] == row.median_ms


def test_speed_ups_are_the_first_metrics_which_mlflow_draws_first() -> None:
    rows = remote_facts.all_races()[0].results[1].rows
    assert [*speed_metrics(rows)][:3] == ["speedup.b1", "speedup.b1.low", "speedup.b1.high"]


def test_key_on_is_no_boolean_and_switches_still_are(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "name: x\nbenchmark:\n  targets: [ort-cpu, {kind: openvino, on: jetson}]\n  profile: off\n"
        "  early_stopping: yes\n"
    )
    benchmark = load(str(path), ("benchmark.restart_processes=no",)).benchmark
    assert [target.name for target in benchmark.targets] == ["ort-cpu", "openvino-f32-on-jetson"]
    assert (benchmark.profile, benchmark.early_stopping, benchmark.restart_processes) == (False, True, False)
    assert load(str(path), ("benchmark.targets=[ort-cpu, {kind: ort-cpu, on: gpu}]",)).benchmark.targets[1].on == "gpu"
