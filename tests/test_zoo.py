"""The zoo of recognisable models: what counts as right there, and a few of its models through the product."""

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
