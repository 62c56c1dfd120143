"""The command line as a person meets it: exit codes, one clear message, no traceback."""

import argparse
import errno
import json
import os
import pkgutil
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import onnx
import pytest
from harness import QUICK, called, command, sets
from loaded_modules import modules_after

from flows.cli.commands import GROUPS
from flows.cli.main import first_of, main
from flows.cli.options import parser
from flows.record.home import Home
from gauntlet.core.run_report import RunReport

HEAVY = ("torch", "tensorflow", "jax", "prefect", "mlflow", "onnx", "onnxruntime", "pydantic", "numpy", "rich")


def test_reader_that_leaves_does_not_end_a_command(tmp_path: Path) -> None:
    code = "from flows.cli.shared import Output; o = Output(); o.print('one'); o.print('two'); open('done', 'w')"
    reader, writer = os.pipe()
    os.close(reader)
    try:
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, stdout=writer, check=True)
    finally:
        os.close(writer)
    assert (tmp_path / "done").exists()


@pytest.mark.parametrize(
    ("file", "limit", "reason"),
    [
        ("/dev/full", "unlimited", "the disk is full. Fix: free space"),
        ("short", "0", "Fix: raise the limit of ulimit -f"),
    ],
)
def test_output_that_cannot_be_written_ends_with_one_line_and_exit_code_3(
    tmp_path: Path, file: str, limit: str, reason: str
) -> None:
    command = ["bash", "-c", f'ulimit -f {limit}; exec "$0" -m flows.cli.main runs', sys.executable]
    with (tmp_path / file).open("w") as full:
        environment = os.environ | {"GAUNTLET_HOME": str(tmp_path)}
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert reason in done.stderr


def test_signal_amid_an_import_ends_a_command_after_it(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def load(_: str) -> object:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:  # as a library in C does that imports another module
            raise ImportError("initialization failed") from error
        return None

    monkeypatch.setattr(pkgutil, "resolve_name", load)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
    try:
        assert main(["runs"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert "interrupted; run the same command again" in capsys.readouterr().err


def test_folder_that_cannot_be_copied_is_an_error_of_its_first_file(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "link").symlink_to("nowhere")
    with pytest.raises(shutil.Error) as copied:
        shutil.copytree(source, tmp_path / "target")
    first = first_of(copied.value)
    assert (first.errno, first.filename) == (errno.ENOENT, str(tmp_path / "target" / "link"))


def test_help_imports_nothing_heavy() -> None:
    assert not set(HEAVY) & modules_after("import flows.cli.main as cli; cli.parser().format_help()")


@pytest.mark.slow
def test_imports_of_a_command_are_not_searched_for_garbage_again_and_again() -> None:
    code = "import gc, sys, gauntlet.__main__ as cli; sys.argv = ['gauntlet', 'targets', '--help']\n"
    code += "try: cli.main()\nexcept SystemExit: import prefect, mlflow; print(gc.get_stats()[2]['collections'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout.splitlines()[-1]) <= 1  # six with Python's own limit


@pytest.mark.slow
@pytest.mark.parametrize("module", ["flows.cli.run", "flows.cli.runs"])
def test_command_that_starts_a_server_imports_prefect_only_when_its_address_is_known(module: str) -> None:
    assert "prefect" not in modules_after(f"import {module}")


def test_list_of_runs_imports_no_stage(tmp_path: Path) -> None:
    loaded = modules_after("import flows.cli.main as cli; cli.main(['runs'])", GAUNTLET_HOME=str(tmp_path))
    assert not {"tasks", "configs.schema", "numpy", "mlflow"} & loaded


def test_command_and_option_of_another_package_are_used(tmp_path: Path) -> None:
    info = tmp_path / "greetings-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greetings\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gauntlet.kinds]\ncommand.greetings = greetings:add_commands\n")
    (tmp_path / "greetings.py").write_text(
        "def add_commands(commands):\n"
        "    commands.add_parser('greet').set_defaults(command='greetings:greet')\n"
        "    commands.choices['show'].add_argument('--greeting')\n"
        "def greet(options):\n"
        "    print('hello')\n"
        "    return 7\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    words = [sys.executable, "-m", "flows.cli.main"]
    done = subprocess.run([*words, "greet"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, "hello\n")
    shown = subprocess.run([*words, "show", "--help"], env=environment, capture_output=True, text=True)
    assert "--greeting" in shown.stdout


def test_every_command_has_a_group_and_an_example_that_parses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    top = parser()
    [commands] = [action for action in top._actions if isinstance(action, argparse._SubParsersAction)]
    for name, one in commands.choices.items():
        assert one.get_default("heading") in GROUPS[:-1], name
        example = shlex.split(str(one.epilog).splitlines()[0].removeprefix("example: gauntlet "))
        assert example[0] == name
        assert callable(pkgutil.resolve_name(top.parse_args(example).command))
        assert max(map(len, one.format_help().splitlines())) <= 80, name


def test_without_a_command_the_help_is_printed(tmp_path: Path) -> None:
    done = command(tmp_path)
    assert done.returncode == 0
    assert "find the winner" in done.stdout


def test_version_is_that_of_the_project(tmp_path: Path) -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    done = command(tmp_path, "--version")
    assert done.returncode == 0
    assert done.stdout.startswith(f"gauntlet {project['version']} (Python 3.")
    assert f"onnx {onnx.__version__}, onnxruntime" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["validate", "nothing.yaml"], ["nothing.yaml", "no such file or preset", "digits-resnet18"]),
        (["run", "digits-resnet18", "--set", "train.epochs=0"], ["digits-resnet18.yaml", "train.epochs: 0", "greater"]),
        (["run", "digits-resnet18", "--set", "train.epoch=3"], ["train.epoch", "did you mean 'epochs'"]),
        (["run", "digits-resnet18", "--set", "nonsense"], ["--set nonsense", "key.path=value"]),
        (["validate", "digits-resnet18", "--set", "select.batch=3"], ["select.batch", "benchmark.batch_sizes"]),
        (["validate"], ["--schema"]),
        (
            ["validate", "nothing.yaml", "digits-resnet18", "none.onnx"],
            ["nothing.yaml: no such", "none.onnx: no such file"],
        ),
        (["show"], ["there is no report of a finished run", "gauntlet run"]),
        (["show", "2020"], ["a run '2020'", "gauntlet run"]),
        (["validate", "x" * 300], ["xxx: File name too long. Fix: "]),
        (["sing-along"], ["there is no command 'sing-along'; `gauntlet --help` lists all"]),
        (["validat"], ["did you mean 'validate'?"]),
        (["run", "x.onnx", "--dta", "images"], ["gauntlet run: ", "no option or argument '--dta'", "mean '--data'?"]),
        (["runs", "--last", "3", "-json"], ["gauntlet runs: ", "'-json'", "`gauntlet runs --help`"]),
    ],
)
def test_wrong_question_is_refused_with_exit_code_2(tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    done = called(tmp_path, *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
    assert not (tmp_path / ".gauntlet" / "runs").exists()  # refused before anything ran


def test_failed_gate_ends_with_exit_code_1_and_says_value_limit_and_key(folder: Path) -> None:
    limit = "numerics.max_rel_error=1e-12"
    done = command(folder, "run", "digits-small-cnn", *sets(*QUICK, limit))
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "numerics.max_rel_error" in done.stdout
    assert "must be <= 1e-12" in done.stdout
    assert "Failed at numerics" in done.stdout
    assert "optimize" not in done.stdout  # later stages did not run
    home = Home(folder / ".gauntlet")
    report = json.loads(called(folder, "show", "--json").stdout)
    assert (report["verdict"], report["stopped_at"]) == ("failed", "numerics")
    run = home.finished_run()
    assert {"report.json", "report.md", "report.html"} <= {p.name for p in run.iterdir()}


@pytest.mark.slow
def test_data_that_cannot_be_read_end_with_exit_code_2_and_a_report(folder: Path) -> None:
    data = "data={kind: arrays, path: nowhere, labels: [a, b]}"
    done = command(folder, "run", "digits-small-cnn", *sets(*QUICK, data))
    assert done.returncode == 2
    assert "Traceback" not in done.stdout + done.stderr
    assert "data: " in done.stdout + done.stderr
    assert "nowhere: not an .npz file" in done.stdout
    assert json.loads(called(folder, "show", "--json").stdout)["stopped_at"] == "data"


def test_show_prints_the_table_of_the_newest_run_and_its_json(folder: Path) -> None:
    first = Home(folder / ".gauntlet").run_folders()[0].name
    shown = called(folder, "show", first)
    assert shown.returncode == 0
    for word in ("static-u8s8", "dynamic-s8", "ort-extended", "fp32", "Winner"):
        assert word in shown.stdout
    assert "; its last run took" in called(folder, "validate", "digits-small-cnn", *sets("optimize=[]")).stdout
    as_json = called(folder, "show", first, "--json").stdout
    assert RunReport.model_validate_json(as_json).run_id == first
    jsonschema.validate(json.loads(as_json), RunReport.model_json_schema(mode="serialization"))
