"""Targets on other machines: what a configuration may ask for, and what the stage and the report say of their races."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
import remote_facts
from free_ports import free_port
from harness import command
from pydantic import ValidationError
from rich.console import Console

from configs.loader import load
from configs.schema import PipelineConfig
from flows.cli.main import main
from flows.cli.report_tables import print_sections
from flows.tracking.metric_names import finite
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import ConfigError
from gauntlet.core.run_report import RunReport, speed_metrics
from gauntlet.core.workspace import Workspace
from gauntlet.reporting.html_report import render_html
from gauntlet.reporting.markdown_report import render_markdown
from gauntlet.targets import OrtCpu, with_options
from tasks.benchmark import BenchmarkConfig
from wings.machines.library.machines_section import machines
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
    wanted = ("remote.failed_targets", 1, "ort-cpu-on-shelf: its worker was lost")
    assert (failed.name, failed.value, failed.detail) == wanted
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


def test_views_show_both_machines_each_with_its_control_and_rows() -> None:
    report = remote_facts.several_machines()
    found = machines(report)
    races, rows = found.tables
    here, there = races.rows
    assert here[:3] == ("this run", "builder", "Xeon Gold 6330 (avx512_vnni)")
    assert there == (
        "ort-cpu-nospin-on-jetson", "orin-7 (pool jetson)", "ARM Cortex-A78AE (asimddp)", "12", "1.2 %", "0.25 cores",
    )  # fmt: skip
    assert [(row[1], row[2], row[-1]) for row in rows.rows] == [
        ("fp32", "ort-cpu", "reference"),
        ("fp32", "ort-cpu-nospin-on-jetson", "not resolved"),
        ("int8", "ort-cpu-nospin-on-jetson", "faster"),
    ]
    page, text = render_html(report), render_markdown(report)
    assert '<h2 id="machines">Machines</h2>' in page
    assert "| orin-7 | int8 | ort-cpu-nospin-on-jetson | 1 | 12.5 ms | 3.20x [3.10, 3.30] | faster |" in text
    for word in ("builder", "Xeon Gold 6330", "orin-7 (pool jetson)", "ARM Cortex-A78AE (asimddp)", "12.5 ms", "1.2 %"):
        assert word in page
        assert word in text


def test_views_say_why_a_target_has_no_rows() -> None:
    report = remote_facts.several_machines()
    for reason in ("no worker of the work pool 'gpu' is alive", "its worker was lost"):
        assert reason.replace("'", "&#39;") in render_html(report)
        assert reason in render_markdown(report)


def test_run_on_one_machine_has_no_such_section() -> None:
    assert shown(remote_facts.one_machine(), 80) == ""
    assert machines(remote_facts.one_machine()) is None
    assert 'id="machines"' not in render_html(remote_facts.one_machine())
    assert "## Machines" not in render_markdown(remote_facts.one_machine())


def test_facts_of_another_version_are_left_out() -> None:
    report = remote_facts.several_machines()
    strange = report.stages[-1].replace(facts={"races": [{"where": "orin"}]})
    assert machines(report.replace(stages=(*report.stages[:-1], strange))) is None


def shown(report: RunReport, width: int) -> str:
    output = io.StringIO()
    print_sections(Console(file=output, width=width), report)
    return output.getvalue()


def test_narrow_terminal_shows_every_machine_with_its_control_and_its_gains() -> None:
    text = shown(remote_facts.several_machines(), 80)
    assert max(map(len, text.splitlines())) <= 80
    for word in ("builder", "Xeon Gold 6330", "orin-7", "ARM Cortex-A78AE", "asimddp", "1.2 %", "3.20x [3.10, 3.30]"):
        assert word in text
    assert "verdict" not in text


def test_wide_terminal_also_shows_threads_load_and_verdicts() -> None:
    text = shown(remote_facts.several_machines(), 140)
    for word in ("threads", "other load", "0.25 cores", "faster", "ort-cpu-nospin-on-jetson"):
        assert word in text


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--pool", "two words"), "--pool two words: expected letters"),
        (("--pool", "gpu", "--store", "/no/such/folder"), "--store /no/such/folder: no such folder"),
        (("--pool", "gpu"), "no Prefect server is known; name that of the runs, for example PREFECT_API_URL="),
    ],
)
def test_arguments_are_refused_in_one_line(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["worker", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_server_that_does_not_respond_is_named(tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{free_port()}/api"
    done = command(tmp_path, "worker", "--pool", "gpu", PREFECT_API_URL=address)
    assert done.returncode == 3
    assert f"gauntlet: Prefect server {address}: " in done.stderr
    assert "Traceback" not in done.stderr
