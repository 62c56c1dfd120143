"""Objects of Python, and files that hold samples, become the files that a run takes."""

import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnx_text
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from gauntlet.core.artifact import Store
from gauntlet.core.errors import ConfigError
from gauntlet.datasets.splits import read_npz_split
from wings.python_api.objects import model_file, samples_file

from .conftest import TABLE, X, Y, read

LOADER = """
import numpy as np

def samples():
    for part in np.split(np.arange(24.0).reshape(6, 4), 2):
        yield part, np.zeros(3, np.int64)

def broken():
    raise RuntimeError("no data here")
"""


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
        (DataLoader(cast(Any, [({"x": x, "y": y}) for x, y in zip(X, Y, strict=True)]), batch_size=4), True),
        (
            DataLoader(cast(Any, [({"pixel_values": x, "label": y}) for x, y in zip(X, Y, strict=True)]), batch_size=4),
            True,
        ),
        (TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), True),
        ([*zip(X, Y, strict=True)], True),
        (torch.from_numpy(X).bfloat16(), False),
        (((torch.from_numpy(X[part]), Y[part]) for part in (slice(4), slice(4, None))), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_samples_are_stored_under_the_name_of_the_input(model: str, store: Store, data: Any, labelled: bool) -> None:
    assert read(samples_file(data, model, store)) == {"values": X.tolist()} | (
        {"labels": Y.tolist()} if labelled else {}
    )


def test_labels_of_a_loader_may_be_texts(model: str, store: Store) -> None:
    loader = DataLoader(cast(Any, [*zip(X, "uvwuvw", strict=True)]), batch_size=4)
    assert read(samples_file(loader, model, store)) == {"values": X.tolist(), "labels": list("uvwuvw")}


def test_table_of_several_inputs_is_stored_by_column(tmp_path: Path, store: Store) -> None:
    two = onnx_text.save(tmp_path / "two.onnx", "two (float[n] a, float[n] b) => (float[n] y) { y = Add(a, b) }")
    assert read(samples_file(TABLE[["a", "b"]], two, store)) == {"a": X[:, 0].tolist(), "b": X[:, 1].tolist()}


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
        ((X, Y, Y), "a batch of 3 parts; expected samples, or a pair of samples and labels. Fix: give these two"),
        (zip(X, Y, strict=True), "labels is one value, not one for each sample. Fix: give batches"),
        ((batch for batch in ()), "generator has no samples"),
        (iter(({"values": X}, {"other": X})), "'values'"),
        (TABLE.assign(b=["1", "2", "oops", "4", "5", "6"]), "column 'b' holds texts, such as 'oops' in row 3, and"),
        (TABLE.rename(columns={"d": "a"}), "two columns are called 'a'. Fix: leave one out, or rename it"),
        (TABLE.assign(query=Y), "5 columns (a, b, c, d, query), but the model's input 'values' takes 4. Fix: leave"),
    ],
)
def test_what_are_no_samples_is_one_error(model: str, store: Store, data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"data: .*{re.escape(message)}"):
        samples_file(data, model, store)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({}, r"model: a dict is none that can be saved here\. Fix: give the path"),
        (torch.nn.Linear(2, 2), "data: there is no sample in it"),
    ],
)
def test_what_is_no_model_or_a_module_without_a_sample_is_one_error(store: Store, model: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_file(model, (batch for batch in ()), store)


@pytest.fixture
def with_input_of_labels(tmp_path: Path) -> str:
    text = "m (float[n,4] x, int64[n,1] labels) => (float[n,4] y) { f = Cast<to = 1>(labels) y = Mul(x, f) }"
    return onnx_text.save(tmp_path / "m.onnx", text)


@pytest.mark.parametrize("given", [{"labels": Y}, {"labels": Y, "input:labels": Y[::-1]}])
def test_input_called_labels_is_told_from_the_truth(
    store: Store, tmp_path: Path, with_input_of_labels: str, given: dict[str, Any]
) -> None:
    np.savez(tmp_path / "x.npz", x=X, **given)
    file = samples_file(tmp_path / "x.npz", with_input_of_labels, store)
    split = read_npz_split(Path(str(file)))
    assert split.inputs["labels"].ravel().tolist() == [*given.values()][-1].tolist()
    assert (split.labels is None) == (len(given) == 1)
    assert read_npz_split(split.save(tmp_path, "again")).inputs.keys() == {"x", "labels"}


def test_columns_of_inputs_with_one_value_a_row_are_in_their_shape(store: Store, tmp_path: Path) -> None:
    text = "m (string[n,1] labels, float[n,1] age) => (string[n,1] y) { y = Identity(labels) z = Abs(age) }"
    table = pd.DataFrame({"labels": list("uvwuvw"), "age": X[:, 0], "target": Y})
    assert read(samples_file(table, onnx_text.save(tmp_path / "m.onnx", text), store)) == {
        "input:labels": [[letter] for letter in "uvwuvw"],
        "age": X[:, :1].tolist(),
        "labels": Y.tolist(),
    }


def test_missing_column_of_an_input_names_the_users_file(
    store: Store, tmp_path: Path, with_input_of_labels: str
) -> None:
    TABLE.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(ConfigError, match=r"t\.csv is not read as samples: no input 'x'; found: a, b, c, d\. Fix:"):
        samples_file(tmp_path / "t.csv", with_input_of_labels, store)


def test_function_of_the_user_gives_batches(model: str, store: Store, tmp_path: Path) -> None:
    (tmp_path / "loader_of_batches.py").write_text(LOADER)
    expected = {"values": X.tolist(), "labels": [0] * 6}
    assert read(samples_file(tmp_path / "loader_of_batches.py", model, store)) == expected
    assert read(samples_file(f"{tmp_path}/loader_of_batches.py:samples", model, store)) == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.docx", "x.docx: a file of no known kind; expected a folder of images or .wav .*, .npz .*FILE.py:FUNCTION"),
        ("bad.parquet", "bad.parquet: cannot be read: ArrowInvalid.*Fix: copy the file again"),
        ("empty.csv", "empty.csv: it is empty. Fix: "),
        ("empty.npy", "empty.npy: it is empty. Fix: "),
        ("none.npz", "none.npz has no samples. Fix: "),
        ("bad.csv", "bad.csv: it is no text in UTF-8. Fix: save it as UTF-8"),
        ("bad.npy", "bad.npy: cannot be read: ValueError"),
        ("loads.py", "loads.py: loads:samples: loads has no function 'samples'"),
        ("fails.py:broken", "fails.py:broken: cannot be read: RuntimeError: no data here"),
    ],
)
def test_what_cannot_be_read_is_one_error(model: str, store: Store, tmp_path: Path, name: str, message: str) -> None:
    for file in ("x.docx", "bad.parquet", "bad.npy", "loads.py"):
        (tmp_path / file).write_text("x = 1")
    for file in ("empty.csv", "empty.npy"):
        (tmp_path / file).touch()
    np.savez(tmp_path / "none.npz", values=X[:0])
    (tmp_path / "fails.py").write_text(LOADER)
    (tmp_path / "bad.csv").write_text("Größe\n1\n", encoding="latin-1")
    with pytest.raises(ConfigError, match=message) as error:
        samples_file(f"{tmp_path}/{name}", model, store)
    assert "\n" not in str(error.value)


def test_damaged_files_beside_a_model_are_refused_by_what_reads_them(tmp_path: Path, store: Store, model: str) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    samples = tmp_path / "samples.npz"
    for content in (b"no archive", b"PK\x05\x06" + bytes(18)):
        samples.write_bytes(content)
        assert samples_file(samples, model, store) == str(samples)
    np.savez(samples, values=np.array([{}], object))
    assert samples_file(samples, model, store) == str(samples)
    with pytest.raises(ConfigError, match=r"broken\.onnx"):
        samples_file(samples, str(tmp_path / "broken.onnx"), store)
