"""`gauntlet diagnose` and `gauntlet inspect` as a person meets them."""

import json
from pathlib import Path

import faulty_models
import numpy as np
import onnx
import onnx_text
import pytest
from harness import called

from wings.inspection.library.diagnosis.findings import TITLES, Diagnosis, FixResult
from wings.inspection.library.summary import Inspection


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(faulty_models.cnn(), path)
    return path


def test_sound_model_ends_with_exit_code_0_and_lists_what_was_looked_for(tmp_path: Path, model: Path) -> None:
    done = called(tmp_path, "diagnose", "model.onnx")
    assert done.returncode == 0, done.stderr
    assert "No fault found" in done.stdout
    for fault in list(TITLES)[:8]:
        assert TITLES[fault] in done.stdout


def test_fault_ends_with_exit_code_1_and_its_fix_is_a_command_that_works(tmp_path: Path, model: Path) -> None:
    mean = np.full((1, 3, 1, 1), 0.25, np.float32)
    onnx.save(faulty_models.leaked_constants(), model)
    np.savez(tmp_path / "constants.npz", **{"model/norm/mean": mean})
    done = called(tmp_path, "diagnose", "model.onnx", "--constants", "constants.npz")
    assert done.returncode == 1
    assert "constant leaked as an input" in done.stdout
    offered = next(line for line in done.stdout.splitlines() if "gauntlet diagnose" in line)
    words = offered.partition("gauntlet ")[2].split()
    assert words == ["diagnose", "model.onnx", "--fix", "model.fixed.onnx", "--constants", "constants.npz"]
    before = model.read_bytes()
    mended = called(tmp_path, *words)
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert "Written: model.fixed.onnx" in mended.stdout
    assert "bound 1 as initializers" in mended.stdout
    assert model.read_bytes() == before


def test_warning_alone_ends_with_exit_code_0(tmp_path: Path, model: Path) -> None:
    onnx.save(faulty_models.missing_shapes(), model)
    done = called(tmp_path, "diagnose", "model.onnx")
    assert done.returncode == 0
    assert "1 warning" in done.stdout


@pytest.mark.slow
def test_json_holds_the_diagnosis_the_fixes_and_the_diagnosis_after(tmp_path: Path, model: Path) -> None:
    onnx.save(faulty_models.frozen_batch(), model)
    done = called(tmp_path, "diagnose", "model.onnx", "--json", "--fix", "fixed.onnx", "--layout", "NHWC")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    found = Diagnosis.model_validate(answer["diagnosis"])
    assert {finding.fault for finding in found.findings} == {"frozen_batch", "wrong_layout"}
    assert FixResult.model_validate(answer["fix"]).output == "fixed.onnx"
    assert Diagnosis.model_validate(answer["after"]).findings == ()


def test_fix_that_is_refused_writes_nothing_and_says_so(tmp_path: Path, model: Path) -> None:
    onnx.save(faulty_models.dropout_that_drops(), model)
    np.savez(tmp_path / "data.npz", x=np.zeros((4, 3, 16, 16), np.float32), y=np.full((4, 10), 7, np.float32))
    done = called(tmp_path, "diagnose", "model.onnx", "--data", "data.npz", "--fix", "fixed.onnx")
    assert done.returncode == 1
    assert "undone: the outputs change by" in done.stdout
    assert "no file is written" in done.stdout
    assert not (tmp_path / "fixed.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["diagnose", "nothing.onnx"], ["nothing.onnx: no such file"]),
        (["diagnose", "notes.txt"], ["notes.txt", "*.onnx"]),
        (["diagnose", "model.onnx", "--data", "nothing.npz"], ["nothing.npz: no such file"]),
        (["diagnose", "model.onnx", "--fix", "out.txt"], ["out.txt", ".onnx"]),
        (["diagnose", "model.onnx", "--layout", "HWC"], ["invalid choice"]),
        (["inspect", "nothing.onnx"], ["nothing.onnx: no such file"]),
        (["inspect", "model.onnx", "--json", "--graph"], ["not allowed"]),
    ],
)
def test_wrong_question_ends_with_exit_code_2(
    tmp_path: Path, model: Path, arguments: list[str], words: list[str]
) -> None:
    (tmp_path / "notes.txt").write_text("no model")
    done = called(tmp_path, *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_damaged_file_ends_with_exit_code_3_and_one_line(tmp_path: Path, model: Path) -> None:
    model.write_bytes(model.read_bytes()[:700])
    for verb in ("diagnose", "inspect"):
        done = called(tmp_path, verb, "model.onnx")
        assert done.returncode == 3
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("gauntlet: model.onnx: not a readable ONNX model")


def test_names_of_a_hostile_model_cannot_steer_the_terminal(tmp_path: Path, model: Path) -> None:
    proto = faulty_models.frozen_batch()
    proto.graph.node[0].name = "\x1b[2J[bold red]conv[/]"
    proto.producer_name = "\x1b]0;title\x07"
    onnx.save(proto, model)
    for words in (["diagnose", "model.onnx", "--layout", "NHWC"], ["inspect", "model.onnx"]):
        done = called(tmp_path, *words)
        assert "\x1b" not in done.stdout
        assert "[bold red]conv" in done.stdout  # shown as it is, not obeyed
        assert "Traceback" not in done.stderr


def test_inspect_shows_the_model_and_its_json(tmp_path: Path, model: Path) -> None:
    done = called(tmp_path, "inspect", "model.onnx")
    assert done.returncode == 0, done.stderr
    for word in (
        "x  float[batch, 3, 16, 16]",
        "opset ai.onnx 18",
        "By operator",
        "By layer",
        "conv2",
        "76 524",
        "parameters",
    ):
        assert word in done.stdout.replace("\u202f", " "), word
    assert Inspection.model_validate_json(called(tmp_path, "inspect", "model.onnx", "--json").stdout).macs == 76_524
    lines = called(tmp_path, "inspect", "model.onnx", "--graph").stdout.splitlines()
    assert lines[-1] == "y [batch, 10] = Gemm(f, w3, b3)"


def test_targets_show_what_each_takes_within_80_columns(tmp_path: Path) -> None:
    onnx.save(onnx_text.model("m (float[n,4] x) => (float[n,4] y) { s = Sin(x) y = Relu(s) }"), tmp_path / "m.onnx")
    done = called(tmp_path, "diagnose", "m.onnx", "--timeout=60", "--targets", "ort-cpu,ort-coreml", COLUMNS="80")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if "ort-" in line}
    assert "2/2" in rows["ort-cpu"]
    assert "1/2" in rows["ort-coreml"]
    assert "1 node on CPUExecutionProvider: Sin" in done.stdout


@pytest.mark.slow
def test_targets_are_in_the_json_and_an_unknown_one_is_an_error(tmp_path: Path, model: Path) -> None:
    done = called(tmp_path, "diagnose", "model.onnx", "--json", "--targets", "ort-cpu")
    [row] = json.loads(done.stdout)["targets"]
    assert (row["target"], row["elsewhere"], row["refused"]) == ("ort-cpu", {}, None)
    done = called(tmp_path, "diagnose", "model.onnx", "--targets", "ort-gpu")
    assert done.returncode == 2
    assert done.stderr.startswith("gauntlet: unknown target 'ort-gpu'; available: ort-cpu, ")
