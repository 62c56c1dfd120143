"""`compare` on a terminal: what it prints, and its exit codes."""

import io
import json
from pathlib import Path

import pytest
from graded_bundles import run_report
from harness import called
from rich.console import Console

from flows.cli.main import main
from gauntlet.core.report import Check
from gauntlet.core.run_report import RunReport
from gauntlet.targets import by_name
from wings.comparison import compare_command, targets_command
from wings.comparison.library.run_comparison import compare_runs


@pytest.fixture
def two() -> tuple[RunReport, RunReport]:
    drop = Check.of("accuracy.max_accuracy_drop", 0.03, "<=", 0.01)
    config = {"quantize": [{"kind": "static"}], "select": {"batch": 1}}
    other = {"quantize": [{"kind": "dynamic"}], "select": {"batch": 1}, "seed": 3}
    first = run_report("run-1", drop, config=config, environment={"host": "a", "packages": {"onnx": "1"}})
    second = run_report("run-2", config=other, environment={"host": "b", "packages": {"onnx": "1"}}, winner="fp32")
    return first, second


def test_comparison_lists_what_differs_and_nothing_else(two: tuple[RunReport, RunReport]) -> None:
    compared = compare_runs(*two)
    assert (compared.first.winner, compared.second.winner) == ("small", "fp32")
    assert [(d.name, d.first, d.second) for d in compared.settings] == [
        ("quantize.0.kind", "static", "dynamic"),
        ("seed", None, 3),
    ]
    assert [(d.name, d.first, d.second) for d in compared.gates] == [
        ("small: accuracy.max_accuracy_drop", "failed: 0.03 <= 0.01", None)
    ]
    assert [d.name for d in compared.environment] == ["host"]
    same = compare_runs(two[0], two[0])
    assert (same.gates, same.settings, same.environment) == ((), (), ())


def test_comparison_warns_that_other_machines_have_other_latencies(two: tuple[RunReport, RunReport]) -> None:
    text = io.StringIO()
    compare_command._print(Console(file=text, width=80), compare_runs(*two))
    assert max(map(len, text.getvalue().splitlines())) <= 80
    assert "Latencies are not comparable: host differ" in text.getvalue()
    assert "failed: 0.03 <= 0.01" in text.getvalue()


def test_compare_prints_json_of_two_runs(
    tmp_path: Path,
    two: tuple[RunReport, RunReport],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / ".gauntlet"))
    assert main(["compare", "run-1", "run-2"]) == 2
    assert "no finished run 'run-1'; the newest are: none yet" in capsys.readouterr().err
    for report in two:
        folder = tmp_path / ".gauntlet" / "runs" / report.run_id
        folder.mkdir(parents=True)
        (folder / "report.json").write_text(report.model_dump_json())
    assert main(["compare", "run-1", "run-2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["second"]["run_id"] == "run-2"


@pytest.mark.slow
def test_targets_lists_all_of_them_with_their_reasons(tmp_path: Path) -> None:
    done = called(tmp_path, "targets", "--json")
    assert done.returncode == 0, done.stderr
    found = {entry["name"]: entry for entry in json.loads(done.stdout)}
    assert found["ort-cpu"]["available"]
    assert "gauntlet targets install openvino" in found["ort-openvino-f32"]["reason"]
    assert all(entry["available"] or entry["reason"] for entry in found.values())


def test_installation_of_an_unknown_environment_is_refused(tmp_path: Path) -> None:
    done = called(tmp_path, "targets", "install", "steam")
    assert done.returncode == 2
    assert "unknown environment 'steam'; available: openvino" in done.stderr


def test_targets_are_a_table_with_a_reason_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = tuple(map(by_name, ("ort-cpu", "openvino-bf16", "ort-openvino-f32")))
    monkeypatch.setattr(targets_command, "default_targets", lambda: few)
    done = called(tmp_path, "targets")
    assert done.returncode == 0
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "yes" in lines["ort-cpu"]
    assert "no: its environment is not installed; install it with: gauntlet targets install" in lines["openvino-bf16"]
    assert "openvino" in lines["ort-openvino-f32"]  # the rest of the same reason, which is told once
    assert done.stdout.count("no: ") == 1
