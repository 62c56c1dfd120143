"""The command line as a person meets it: exit codes, one clear message, no traceback."""

import json
import os
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest
from harness import QUICK, command, sets

from configs.loader import presets
from configs.schema import PipelineConfig
from flows.cli.options import parser
from flows.record.home import Home
from gauntlet.core.run_report import RunReport

HEAVY = ("torch", "tensorflow", "jax", "prefect", "mlflow", "onnx", "onnxruntime", "pydantic", "numpy", "rich")


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, flows.cli.main as cli; cli.parser().format_help(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not set(HEAVY) & set(loaded)


@pytest.mark.parametrize("module", ["run", "fleet", "retrain", "sync"])
def test_command_that_starts_a_server_imports_prefect_only_when_its_address_is_known(module: str) -> None:
    code = f"import sys, flows.cli.{module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "prefect" not in loaded


@pytest.mark.parametrize(
    "words",
    [
        ["run", "digits-resnet18"],
        ["validate"],
        ["show"],
        ["ui"],
        ["sync"],
        ["diagnose", "m.onnx"],
        ["inspect", "m.onnx"],
        ["bench", "m.onnx"],
        ["targets"],
        ["targets", "install", "web"],
        ["bundle"],
        ["verify", "m.zip"],
        ["predict", "m.zip", "image.png"],
        ["serve", "bundle"],
        ["fleet", "models"],
    ],
    ids=" ".join,
)
def test_command_names_a_function_that_exists(words: list[str]) -> None:
    assert callable(pkgutil.resolve_name(parser().parse_args(words).command))


def test_help_names_every_command_and_the_exit_codes(tmp_path: Path) -> None:
    done = command(tmp_path, "--help")
    assert done.returncode == 0
    for word in ("run", "validate", "show", "ui", "sync", "exit codes"):
        assert word in done.stdout


def test_version_is_printed_within_half_a_second(tmp_path: Path) -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    before = os.times()
    done = command(tmp_path, "--version")
    after = os.times()
    assert (done.returncode, done.stdout) == (0, f"gauntlet {project['version']}\n")
    spent_s = after.children_user + after.children_system - before.children_user - before.children_system
    assert spent_s < 0.5  # of the processor: a busy machine does not change it much


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["validate", "nothing.yaml"], ["nothing.yaml", "no such file or preset", "digits-resnet18"]),
        (
            ["run", "digits-resnet18", "--set", "train.epochs=0"],
            ["digits-resnet18.yaml", "train.epochs", "0", "greater"],
        ),
        (["run", "digits-resnet18", "--set", "train.epoch=3"], ["train.epoch", "did you mean 'epochs'"]),
        (["run", "digits-resnet18", "--set", "nonsense"], ["--set nonsense", "key.path=value"]),
        (["validate", "digits-resnet18", "--set", "select.batch=3"], ["select.batch", "benchmark.batch_sizes"]),
        (["validate"], ["--schema"]),
        (["show"], ["there is no report", "gauntlet run"]),
        (["show", "2020"], ["a run '2020'"]),
        (["dance"], ["invalid choice"]),
    ],
)
def test_wrong_question_is_refused_with_exit_code_2(tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    done = command(tmp_path, *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
    assert not (tmp_path / ".gauntlet" / "runs").exists()  # refused before anything ran


@pytest.mark.slow
def test_validate_accepts_every_preset(tmp_path: Path) -> None:
    for name in presets():
        done = command(tmp_path, "validate", name)
        assert done.returncode == 0, done.stderr
        assert "valid" in done.stdout


def test_schema_describes_every_preset(tmp_path: Path) -> None:
    import yaml

    schema = json.loads(command(tmp_path, "validate", "--schema").stdout)
    for path in presets().values():
        jsonschema.validate(yaml.safe_load(path.read_text()), schema)
    assert schema["title"] == PipelineConfig.__name__


def test_failed_gate_ends_with_exit_code_1_and_says_value_limit_and_key(folder: Path) -> None:
    limit = "numerics.max_abs_error=1e-12"
    done = command(folder, "run", "digits-small-cnn", *sets(*QUICK, limit))
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "numerics.max_abs_error" in done.stdout
    assert "must be <= 1e-12" in done.stdout
    assert "Failed at numerics" in done.stdout
    assert "optimize" not in done.stdout  # later stages did not run
    home = Home(folder / ".gauntlet")
    report = json.loads(command(folder, "show", "--json").stdout)
    assert (report["verdict"], report["stopped_at"]) == ("failed", "numerics")
    run = home.finished_run()
    assert run is not None
    assert {"report.json", "report.md", "report.html"} <= {p.name for p in run.iterdir()}


@pytest.mark.slow
def test_stage_that_breaks_ends_with_exit_code_3(folder: Path) -> None:
    data = "data={kind: arrays, path: nowhere, labels: [a, b]}"
    done = command(folder, "run", "digits-small-cnn", *sets(*QUICK, data))
    assert done.returncode == 3
    assert "Traceback" not in done.stdout + done.stderr
    assert "nowhere: not an .npz file" in done.stdout


def test_show_prints_the_table_of_the_newest_run_and_its_json(folder: Path) -> None:
    home = Home(folder / ".gauntlet")
    first = home.run_folders()[0].name
    shown = command(folder, "show", first)
    assert shown.returncode == 0
    for word in ("static-u8s8", "dynamic-s8", "onnxslim", "fp32", "Winner"):
        assert word in shown.stdout
    as_json = command(folder, "show", first, "--json").stdout
    report = RunReport.model_validate_json(as_json)
    assert report.run_id == first
    jsonschema.validate(json.loads(as_json), RunReport.model_json_schema(mode="serialization"))


def test_documented_schema_of_the_report_is_the_real_one() -> None:
    documented = Path(__file__).parents[3] / "docs" / "report.schema.json"
    assert json.loads(documented.read_text()) == RunReport.model_json_schema(mode="serialization")
