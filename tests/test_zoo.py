"""The zoo of recognisable models: what counts as right there, and a few of its models through the product."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest

pytest.importorskip("frameworks.keras")  # the zoo has models of all frameworks
pytest.importorskip("frameworks.sklearn")
pytest.importorskip("frameworks.torch")

import zoo
from zoo_models.zoo_model import ZooModel

from flows.record.home import Home

X = np.arange(8, dtype=np.float32).reshape(4, 2)


def brought(folder: Path, *expected: np.ndarray, refusal: str = "") -> ZooModel:
    onnx.save(onnx_text.model("m (float[n,2] x) => (float[n,2] y) { y = Relu(x) }"), folder / "m.onnx")
    return ZooModel(folder / "m.onnx", {}, {"x": X}, list(expected), refusal=refusal)


@pytest.mark.parametrize(
    ("expected", "verdict"), [((X,), "right"), ((X + 0.1,), "wrong"), ((X[:, :1],), "wrong"), ((X, X), "wrong")]
)
def test_file_is_right_where_its_outputs_are_the_framework_s(
    tmp_path: Path, expected: tuple[np.ndarray, ...], verdict: str
) -> None:
    assert zoo.compared(brought(tmp_path, *expected), tmp_path / "m.onnx")[0] == verdict


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("it has zeros. Fix: train it without", "refused with reason"),
        ("it has zeros", "refused"),
        ("another reason. Fix: this", "refused"),
        ("Traceback (most recent call last): it has zeros. Fix: that", "traceback"),
    ],
)
def test_refusal_counts_where_it_has_the_reason_and_a_fix(tmp_path: Path, text: str, verdict: str) -> None:
    assert zoo.refused(brought(tmp_path, X, refusal="it has zeros"), text)[0] == verdict


def test_table_and_figures_name_what_is_not_right() -> None:
    rows = [("onnx_a", "right", "arrays", "2", ""), ("onnx_b", "wrong", "arrays", "4", "2 labels differ")]
    assert zoo.table(rows)[1] == ("onnx", "wrong", "arrays", "1", "4", "b (2 labels differ)")
    kind = ("kinds_gpt", "right", "arrays", "3", "y has the size of an input")
    assert zoo.table([kind]) == [("kinds_gpt", "right", "arrays", "1", "3", "y has the size of an input")]
    assert {each.name: each.met for each in zoo.figures(rows)} == {
        "models": False, "right": False, "right, or refused as meant": False, "wrong files": False, "tracebacks": True
    }  # fmt: skip


def test_reason_of_a_problem_is_what_the_run_says() -> None:
    log = """  samples   90
  problem   arrays: each output is compared with the original's, because y has
            the size of an input; if it is another problem, name it with --task
  recipes   quantize: auto"""
    assert zoo.reason(log) == "y has the size of an input"
    named = "  problem  detection (detr): boxes within 0 and 1; override with --task\n"
    assert zoo.reason(named) == "boxes within 0 and 1"


def test_rows_of_a_file_are_kept_the_last_one_of_each_model(tmp_path: Path) -> None:
    rows = [("onnx_a", "wrong", "arrays", "2", "1 differs"), ("onnx_a", "right", "arrays", "3", "")]
    lines = [json.dumps(dict(zip(zoo.COLUMNS, row, strict=True))) for row in rows]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    assert zoo.json_rows(tmp_path / "rows.jsonl") == {"onnx_a": rows[1]}
    assert zoo.json_rows(tmp_path / "none.jsonl") == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "verdict"),
    [("sklearn_table", "right"), ("sklearn_NearestNeighbors", "refused with reason"), ("torch_nested", "right")],
)
def test_model_of_the_zoo_is_right_or_refused_as_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, verdict: str
) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path / "home"))  # which a run replaces
    assert zoo.judged(name, tmp_path, Home(tmp_path / "home"))[1] == verdict
