"""Inputs that are made up from a model's file alone."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_text
import pytest

from gauntlet.core.errors import ConfigError
from gauntlet.datasets.random_inputs import random_inputs


def test_random_inputs_have_the_model_s_names_types_and_shapes(tmp_path: Path) -> None:
    text = "m (float[batch,3,4] x, int64[batch,5] ids, bool[batch] on) => (float[batch,3,4] x) {}"
    onnx.save(onnx_text.model(text), tmp_path / "m.onnx")
    made = random_inputs(tmp_path / "m.onnx", 7)
    assert {name: (array.shape, array.dtype.name) for name, array in made.items()} == {
        "x": ((7, 3, 4), "float32"), "ids": ((7, 5), "int64"), "on": ((7,), "bool"),
    }  # fmt: skip
    assert set(np.unique(made["ids"])) == {0, 1}
    assert json.dumps(made["x"].tolist()) == json.dumps(random_inputs(tmp_path / "m.onnx", 7)["x"].tolist())


def test_random_inputs_ask_for_a_shape_that_the_file_leaves_open(tmp_path: Path) -> None:
    onnx.save(onnx_text.model("m (float[batch,w] x) => (float x) {}"), tmp_path / "m.onnx")
    with pytest.raises(ConfigError, match=r"'x' is \[batch, w\].*--shape x=3x224x224"):
        random_inputs(tmp_path / "m.onnx", 2)
    assert random_inputs(tmp_path / "m.onnx", 2, {"x": (9,)})["x"].shape == (2, 9)
    with pytest.raises(ConfigError, match="--shape z: unknown input; available: x"):
        random_inputs(tmp_path / "m.onnx", 2, {"z": (9,)})


def test_random_inputs_are_whole_where_there_is_no_common_batch(tmp_path: Path) -> None:
    onnx.save(onnx_text.model("m (float[2,8] state, float step) => (float[2,8] state) {}"), tmp_path / "m.onnx")
    made = random_inputs(tmp_path / "m.onnx", 3)
    assert {name: array.shape for name, array in made.items()} == {"state": (3, 2, 8), "step": (3,)}
