"""Objects of Python become the files that a run takes."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_text
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from gauntlet.core.artifact import Store
from gauntlet.core.errors import ConfigError
from wings.python_api.objects import model_file, samples_file

X = np.arange(24, dtype=np.float64).reshape(6, 4)
Y = np.arange(6)
TABLE = pd.DataFrame(X, columns=list("abcd"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def model(tmp_path: Path) -> str:
    proto = onnx_text.model("one (float[n,4] values) => (float[n,4] y) { y = Relu(values) }")
    onnx.save(proto, tmp_path / "one.onnx")
    return str(tmp_path / "one.onnx")


def read(file: str | None) -> dict[str, Any]:
    assert file is not None
    with np.load(file) as arrays:
        return {name: arrays[name].tolist() for name in arrays.files}


def batches() -> Iterator[tuple[torch.Tensor, np.ndarray[Any, Any]]]:
    yield torch.from_numpy(X[:4]), Y[:4]
    yield torch.from_numpy(X[4:]), Y[4:]


@pytest.mark.parametrize(
    ("data", "labelled"),
    [
        (X, False),
        (X.tolist(), False),
        (torch.from_numpy(X).requires_grad_(), False),
        (TABLE, False),
        (TABLE.assign(labels=Y), True),
        ({"values": X}, False),
        ({"values": torch.from_numpy(X), "labels": Y.tolist()}, True),
        ((X, Y), True),
        ((TABLE, pd.Series(Y)), True),
        (({"values": X}, Y), True),
        (DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), batch_size=4), True),
        (DataLoader(TensorDataset(torch.from_numpy(X)), batch_size=4), False),
        (batches(), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_samples_are_stored_under_the_name_of_the_input(model: str, store: Store, data: Any, labelled: bool) -> None:
    assert read(samples_file(data, model, store)) == {"values": X.tolist()} | (
        {"labels": Y.tolist()} if labelled else {}
    )


def test_table_of_several_inputs_is_stored_by_column(tmp_path: Path, store: Store) -> None:
    proto = onnx_text.model("two (float[n] a, float[n] b) => (float[n] y) { y = Add(a, b) }")
    onnx.save(proto, tmp_path / "two.onnx")
    table = read(samples_file(TABLE[["a", "b"]], str(tmp_path / "two.onnx"), store))
    assert table == {"a": X[:, 0].tolist(), "b": X[:, 1].tolist()}


def test_same_objects_are_the_same_files(model: str, store: Store) -> None:
    assert samples_file(X, model, store) == samples_file(X.copy(), model, store)
    proto = onnx.load(model)
    assert model_file(proto, None, store) == model_file(proto, None, store)


def test_paths_stay_paths(model: str, store: Store) -> None:
    assert samples_file(Path("images"), model, store) == "images"
    assert samples_file(None, model, store) is None
    assert model_file(Path(model), None, store) == model


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([[1.0, 2.0], [3.0]], "a list cannot be read as an array"),
        (np.array([object()]), "is no array of numbers or texts"),
        (3, "expected arrays, a table, or batches of them"),
        ((X, Y, Y), "a batch of 3 parts"),
        (iter(()), "list index out of range"),
        (iter(({"values": X}, {"other": X})), "'values'"),
    ],
)
def test_what_are_no_samples_is_one_error(model: str, store: Store, data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"data: .*{re.escape(message)}"):
        samples_file(data, model, store)


def test_what_is_no_model_is_one_error(store: Store) -> None:
    with pytest.raises(ConfigError, match=r"model: a dict is none that can be saved here\. Fix: give the path"):
        model_file({}, None, store)
