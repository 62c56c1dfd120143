"""First steps: options, answers or a form on Prefect's page become a run."""

import os
import pty
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest
import yaml
from harness import GAUNTLET, QUICK, called, latest_report
from prefect.utilities.callables import parameter_schema

from configs.brought_model import infer_config
from configs.loader import load
from flows.record.home import Home
from gauntlet.core.errors import ConfigError
from wings.first_steps import model_flow
from wings.first_steps.model_flow import run_model_or_preset

pytestmark = pytest.mark.slow
MODEL = "m (float[n,4] x) => (float[n,3] y) <float[4,3] w> { y = MatMul(x, w) }"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Hides the one of this folder's conftest: nothing here needs a finished run."""
    onnx.save(onnx_text.model(MODEL), tmp_path / "model.onnx")
    return tmp_path


def answered(folder: Path, *answers: str) -> tuple[int, str]:
    """Call the command on a terminal on which the answers are typed; return its exit code and what it printed."""
    ours, terminal = pty.openpty()
    os.write(ours, "".join(f"{answer}\n" for answer in answers).encode())
    own = os.environ | {"GAUNTLET_HOME": str(folder / "home")}
    done = subprocess.run(
        [GAUNTLET, "init"], cwd=folder, env=own, stdin=terminal, capture_output=True, text=True, check=False
    )
    os.close(ours)
    os.close(terminal)
    return done.returncode, done.stdout + done.stderr


def test_three_answers_become_the_preset_that_a_run_infers(folder: Path) -> None:
    code, text = answered(folder, "model.onnx", "", "size")
    assert code == 0, text
    assert text.count("]: ") == 2
    assert text.endswith("Written: model.yaml. Run it: gauntlet run model.yaml\n")
    values = yaml.safe_load((folder / "model.yaml").read_text())
    assert values.pop("select") == {"objective": "size"}
    inferred = infer_config(folder / "model.onnx", None, None, {}).values
    inferred["train"]["model"] = values["train"]["model"]
    assert values == inferred
    assert called(folder, "validate", "model.yaml").returncode == 0


def test_empty_answers_are_random_samples_and_speed(folder: Path) -> None:
    code, text = answered(folder, "model.onnx", "", "")
    assert code == 0, text
    config = load(str(folder / "model.yaml"))
    assert (config.data.kind, config.select.objective) == ("synthetic", "latency")


def test_largest_drop_is_a_goal_and_samples_of_a_table_are_kept_beside_the_preset(folder: Path) -> None:
    np.save(folder / "samples.npy", np.ones((20, 4), np.float32))
    done = called(folder, "init", "model.onnx", "--data", "samples.npy", "--goal", "0.02", "--out", "own.yaml")
    assert done.returncode == 0, done.stderr
    assert "Written: own.yaml, with its samples in own.npz. Run it: " in done.stdout
    config = load(str(folder / "own.yaml"))
    assert config.accuracy.max_accuracy_drop == 0.02
    assert config.data.model_dump()["path"] == folder / "own.npz"
    assert np.load(folder / "own.npz")["x"].shape == (20, 4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.onnx", "--goal", "size"], "init: there is no terminal to ask on, and something is missing"),
        (["--data", "random", "--goal", "size"], "Fix: give MODEL, --data (or --data random) and --goal"),
        (["model.onnx", "--data", "random", "--goal", "fast"], "--goal fast: expected speed, size, memory, or a share"),
        (["model.onnx", "--data", "random", "--goal", "nan"], "--goal nan: expected"),
        (["digits-vit", "--data", "random", "--goal", "size"], "digits-vit: expected the file of a model"),
        (["model.onnx", "--data", "none", "--goal", "size"], "--data none: no such file or folder"),
        (["model.onnx", "--data", "random", "--goal", "size", "--out", "own.yaml"], "own.yaml: it exists"),
        (["model.onnx", "--data", "random", "--goal", "size", "--out", "no/own.yaml"], "No such file or directory"),
    ],
)
def test_missing_or_wrong_answer_is_one_error(
    folder: Path, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "own.yaml").write_text("name: own\n")
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        done = called(folder, "init", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert {path.name for path in folder.glob("*.yaml")} == {"own.yaml"}


TEXT = "net (float[n,8] x) => (float[n,4] y) <float[8,4] w> { y = MatMul(x, w) }"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with a folder of its own as the home."""
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / "home"))
    onnx.save(onnx_text.model(TEXT), tmp_path / "net.onnx")
    np.savez(tmp_path / "samples.npz", x=np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32))
    return tmp_path / "net.onnx"


def test_form_has_five_fields_that_are_words_and_each_is_described() -> None:
    fields = parameter_schema(run_model_or_preset.fn).properties
    assert [*fields] == ["model", "data", "labels", "settings", "fresh"]
    assert all(field.get("description") for field in fields.values())
    assert {fields[name].get("type") for name in ("model", "data", "labels")} == {"string"}  # each a line to type in
    file = Path(model_flow.__file__).with_name("prefect.yaml")
    [deployment] = yaml.safe_load(file.read_text())["deployments"]
    assert deployment["entrypoint"] == "wings/first_steps/model_flow.py:run_model_or_preset"
    assert fields.keys() >= deployment["parameters"].keys()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"model": "no-such-preset"}, "no-such-preset"),
        ({"model": "digits-small-cnn", "data": "images"}, "--data is for a model"),
        ({"model": "digits-small-cnn", "settings": ("no.such.key=1",)}, "no"),
    ],
)
def test_wrong_field_is_one_error(how: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_model_or_preset.fn(**how)


@pytest.mark.usefixtures("prefect_server")
def test_model_file_and_its_samples_end_in_a_report(model: Path) -> None:
    settings = (*(each for each in QUICK if each.startswith(("benchmark", "numerics"))), "quantize=[]")
    run = run_model_or_preset(str(model), str(model.with_name("samples.npz")), settings=settings)
    report = latest_report(Home.find())
    assert (report.run_id, report.name, report.verdict) == (run, "net", "passed")
    assert "Prefect flow run" in report.links
