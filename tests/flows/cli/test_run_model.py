"""`gauntlet run MODEL`: a model file in place of a configuration."""

import io
from pathlib import Path
from typing import get_args

import detector_models
import exported_models
import needs
import numpy as np
import onnx
import onnx_text
import pytest
from harness import SHORT, called, command, latest_report, sets
from rich.console import Console
from small_images import write_pictures

import gauntlet
from configs.brought_model import infer_config
from configs.loader import validated
from flows.cli.main import main
from flows.cli.options import TASKS
from flows.cli.run import CONFIG_FILE, print_inferred
from flows.record.home import Home
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.signature import Task

QUICK = (*SHORT, "quantize=[{kind: static}]", "optimize=[]")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Hides the one of this folder's conftest: nothing here needs a finished run."""
    onnx.save(exported_models.convolutions(11), tmp_path / "model.onnx")
    return tmp_path


def test_what_was_inferred_fits_80_columns_and_names_what_was_assumed(folder: Path) -> None:
    text = "m (float[n,3,32,32] x) => (float[n,3] y) { g = GlobalAveragePool(x) y = Flatten(g) }"
    onnx_text.save(folder / "m.onnx", text)
    inferred = infer_config(folder / "m.onnx", write_pictures(folder / "p", "a", "b", "c"), None, {})
    text = io.StringIO()
    print_inferred(Console(file=text, width=80), "m.onnx", inferred, validated(folder, inferred.values))
    lines = text.getvalue().splitlines()
    assert lines[0] == "m: inferred from m.onnx"
    assert all(len(line) <= 80 for line in lines)
    found = " ".join(text.getvalue().split())
    assert "problem classification, 3 classes" in found
    assert "ASSUMED: RGB / 255, mean [0.485, 0.456, 0.406]" in found
    assert "input x float32 [n, 3, 32, 32]" in found
    assert "quantize: auto" in found
    assert "ort-cpu" in found


def test_no_clean_up_removes_samples_that_are_stored_before_the_run_begins(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for wing in ("wings.housekeeping", "wings.python_api"):
        pytest.importorskip(wing)

    def clean(*_: object) -> None:
        raise StageError(f"clean ended with {main(['clean'])}")

    monkeypatch.setenv("GAUNTLET_HOME", str(folder / "home"))
    monkeypatch.setattr("flows.cli.run.completed_run", clean)
    np.save(folder / "x.npy", np.zeros((40, 3, 32, 32), np.float32))
    assert main(["run", str(folder / "model.onnx"), "--data", str(folder / "x.npy")]) == 3
    error = capsys.readouterr().err
    assert "a run is in progress" in error
    assert "clean ended with 2" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.onnx",), "missing.onnx: no such file"),
        (("model.onnx", "--data", "missing"), "--data missing: no such file or folder"),
        (
            ("model.onnx", "--set", "quantize=nothing"),
            "model.onnx: quantize: 'nothing': write auto, or a list of recipes",
        ),
        (("digits-small-cnn", "--data", "x.npz"), "--data is for a model; digits-small-cnn is a configuration"),
        (("digits-small-cnn", "--shape", "x=3"), "--shape is for a model"),
        (("digits-small-cnn", "--task", "text"), "--task is for a model"),
        (("model.onnx", "--out", "model.onnx"), "--out model.onnx: it exists. Fix: remove it"),
        (("model.onnx", "--out", "no/w.onnx"), "--out no/w.onnx: no folder no"),
        (("model.onnx", "--out", "w.zip"), "--out w.zip: expected a file that ends in .onnx. Fix: a bundle is written"),
        (("model.onnx", "--task", "text"), "--task text: no"),
    ],
)
def test_wrong_argument_is_one_line_and_exit_code_2(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(folder)
    assert main(["run", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


def test_group_that_is_no_pattern_is_one_line_and_exit_code_2(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures = write_pictures(folder / "p", "a", "b", "c")
    assert main(["validate", str(folder / "model.onnx"), "--data", str(pictures), "--group", "(["]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "--group ([: no regular expression: " in line


@pytest.mark.parametrize("words", [["validate"], ["run", "--dry-run"]], ids=" ".join)
def test_what_would_be_tried_is_shown_and_nothing_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    pytest.importorskip("wings.python_api")
    monkeypatch.setenv("GAUNTLET_HOME", str(folder / "home"))
    np.save(folder / "rows.npy", np.random.default_rng(0).random((40, 3, 32, 32), np.float32))
    model, samples = str(folder / "model.onnx"), str(folder / "rows.npy")
    assert main([*words, model, "--data", samples, "--set", "quantize=[{kind: static}]"]) == 0
    shown = capsys.readouterr().out
    assert all(len(line) <= 80 or " " not in line.strip() for line in shown.splitlines())
    out = " ".join(shown.split())
    assert "model: inferred from" in out
    assert samples in out.replace(" ", "")
    assert "model.onnx: valid; 4 candidates: fp32, passes, ort-extended, static-u8s8; raced on ort-cpu" in out
    assert "; how long it takes is not known before a run of it has passed" in out
    assert "but it cannot run here" not in out
    assert "recipes 1 as set; 2 graph passes" in out
    assert not (folder / "home").exists()


def test_model_is_tried_with_the_operator_libraries_of_the_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "m (float[4] x) => (float[n] a, float[m] b) { a, b = ai.onnx.contrib.NegPos(x) }"
    onnx.save(onnx_text.model(text, domains={"ai.onnx.contrib": 1}), tmp_path / "own.onnx")
    arguments = ["validate", str(tmp_path / "own.onnx"), "--set", "quantize=[]"]
    assert main(arguments) == 2
    assert "ai.onnx.contrib" in capsys.readouterr().err
    assert main([*arguments, "--set", f"operator_libraries=[{needs.operator_library()}]"]) == 0


def test_every_problem_can_be_requested() -> None:
    assert set(TASKS) == set(get_args(Task))


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_detector_without_labels_is_judged_shipped_and_used_as_a_detector(folder: Path) -> None:
    onnx.save(detector_models.yolov8(), folder / "yolo.onnx")
    np.savez(folder / "samples.npz", images=detector_models.images(60))
    lock = {"GAUNTLET_HOST_LOCK": str(folder / "host.lock")}
    done = command(folder, "run", "yolo.onnx", "--data", "samples.npz", *sets(*QUICK), COLUMNS="200", **lock)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "problem         detection (yolov8): output0 [n, 10, 64] holds 4 rows of boxes in pixels" in done.stdout
    home = Home(folder / ".gauntlet")
    assert latest_report(home).metric == "map"
    assert called(folder, "bundle", latest_report(home).run_id, "--out", "yolo.zip").returncode == 0
    predictor = gauntlet.load(folder / "yolo.zip")
    outputs = predictor.run({"images": detector_models.images(60)})
    assert any("% at" in prediction.text() for prediction in predictor.decode(outputs))


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_model_file_ends_with_a_winner_and_a_configuration_to_keep(folder: Path) -> None:
    lock = {"GAUNTLET_HOST_LOCK": str(folder / "host.lock")}
    done = command(folder, "run", "model.onnx", "--out", "winner.onnx", *sets(*QUICK), COLUMNS="80", **lock)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "model: inferred from model.onnx" in done.stdout
    home = Home(folder / ".gauntlet")
    report = latest_report(home)
    assert report.winner is not None
    assert f"Written: winner.onnx, which is {report.winner}" in done.stdout
    onnx.checker.check_model(onnx.load(folder / "winner.onnx"))
    assert "data.random_samples" in done.stdout  # the winner's warning
    path = home.runs / report.run_id / CONFIG_FILE
    assert f"Configuration: {path.relative_to(folder)}" in done.stdout
    assert "1 as set" in done.stdout
    assert "valid; 2 candidates: fp32, static-u8s8" in called(folder, "validate", str(path)).stdout


def test_home_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        ConfigError, match=r"home: cannot be the home of runs \(Not a directory\)\. Fix: set GAUNTLET_H"
    ):
        Home(tmp_path / "file" / "home").create()
