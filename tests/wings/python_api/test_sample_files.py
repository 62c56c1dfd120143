"""Samples in the files that other programs write are stored as arrays by input."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_text
import pandas as pd
import pytest

from gauntlet.core.artifact import Store
from gauntlet.core.errors import ConfigError
from wings.python_api.objects import samples_file

X = np.arange(24, dtype=np.float64).reshape(6, 4) / 4
TABLE = pd.DataFrame(X, columns=list("abcd"))
LOADER = """
import numpy as np

def samples():
    for part in np.split(np.arange(24).reshape(6, 4) / 4, 2):
        yield part, np.zeros(3, np.int64)

def broken():
    raise RuntimeError("no data here")
"""


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


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("x.csv", lambda path: TABLE.to_csv(path, index=False)),
        ("x.tsv", lambda path: TABLE.to_csv(path, index=False, sep="\t")),
        ("x.parquet", TABLE.to_parquet),
        ("x.jsonl", lambda path: TABLE.to_json(path, orient="records", lines=True)),
        ("x.npy", lambda path: np.save(path, X)),
    ],
)
def test_array_or_table_is_the_only_input(
    model: str, store: Store, tmp_path: Path, name: str, write: Callable[[Path], None]
) -> None:
    write(tmp_path / name)
    assert read(samples_file(tmp_path / name, model, store)) == {"values": X.tolist()}


@pytest.mark.parametrize("column", ["labels", "label", "target", "class", "y"])
def test_column_has_the_labels(model: str, store: Store, tmp_path: Path, column: str) -> None:
    TABLE.assign(**{column: list("uvwuvw")}).to_csv(tmp_path / "x.csv", index=False)
    assert read(samples_file(tmp_path / "x.csv", model, store))["labels"] == list("uvwuvw")


def test_input_of_that_name_is_no_label(store: Store, tmp_path: Path) -> None:
    onnx.save(onnx_text.model("two (float[n] a, float[n] y) => (float[n] z) { z = Add(a, y) }"), tmp_path / "two.onnx")
    TABLE.rename(columns={"b": "y"})[["a", "y"]].to_csv(tmp_path / "x.csv", index=False)
    stored = read(samples_file(tmp_path / "x.csv", str(tmp_path / "two.onnx"), store))
    assert stored == {"a": X[:, 0].tolist(), "y": X[:, 1].tolist()}


def test_function_of_the_user_gives_batches(model: str, store: Store, tmp_path: Path) -> None:
    (tmp_path / "loader_of_batches.py").write_text(LOADER)
    expected = {"values": X.tolist(), "labels": [0] * 6}
    assert read(samples_file(tmp_path / "loader_of_batches.py", model, store)) == expected
    assert read(samples_file(f"{tmp_path}/loader_of_batches.py:samples", model, store)) == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.docx", r"x.docx: a file of no known kind; expected a folder of images, .npz .*FILE.py:FUNCTION"),
        ("bad.parquet", "bad.parquet: cannot be read: ArrowInvalid"),
        ("bad.npy", "bad.npy: cannot be read: ValueError"),
        ("loads.py", "loads.py: loads:samples: loads has no function 'samples'"),
        ("fails.py:broken", "fails.py:broken: cannot be read: RuntimeError: no data here"),
    ],
)
def test_what_cannot_be_read_is_one_error(model: str, store: Store, tmp_path: Path, name: str, message: str) -> None:
    for file in ("x.docx", "bad.parquet", "bad.npy", "loads.py"):
        (tmp_path / file).write_text("x = 1")
    (tmp_path / "fails.py").write_text(LOADER)
    with pytest.raises(ConfigError, match=message) as error:
        samples_file(f"{tmp_path}/{name}", model, store)
    assert "\n" not in str(error.value)
