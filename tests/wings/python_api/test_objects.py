"""Objects of Python, and samples in the files of other programs, become the files that a run takes."""

import re
import sys
from collections.abc import Callable
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
from wings.python_api.sample_files import read_samples

X = np.arange(24, dtype=np.float64).reshape(6, 4)
Y = np.arange(6)
TABLE = pd.DataFrame(X, columns=list("abcd"))
LOADER = """
import numpy as np

def samples():
    for part in np.split(np.arange(24.0).reshape(6, 4), 2):
        yield part, np.zeros(3, np.int64)

def broken():
    raise RuntimeError("no data here")
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def model(tmp_path: Path) -> str:
    return onnx_text.save(tmp_path / "one.onnx", "one (float[n,4] values) => (float[n,4] y) { y = Relu(values) }")


def read(file: str | None) -> dict[str, Any]:
    assert file is not None
    with np.load(file) as arrays:
        return {name: arrays[name].tolist() for name in arrays.files}


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


def test_second_column_of_labels_is_no_feature(tmp_path: Path, store: Store) -> None:
    model = onnx_text.save(tmp_path / "open.onnx", "m (float[N, M] values) => (float[N, M] y) { y = Relu(values) }")
    (tmp_path / "x.csv").write_text("a,b,label,label\n1,2,0,0\n3,4,1,1\n")
    with pytest.raises(ConfigError, match=r"x\.csv: .*two columns are called 'label'\. Fix: leave one out"):
        samples_file(tmp_path / "x.csv", model, store)


def test_table_without_pandas_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.csv").write_text("a,label\n1,0\n")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"--data .*x\.csv: tables are read by pandas.*Fix: pip install pandas"):
        read_samples(str(tmp_path / "x.csv"))


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


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("x.csv", lambda path: TABLE.to_csv(path, index=False)),
        ("x.tsv", lambda path: TABLE.to_csv(path, index=False, sep="\t")),
        ("x.parquet", TABLE.to_parquet),
        (
            "x.csv",
            lambda path: path.write_text("a,b,c,d\n" + TABLE.to_csv(header=False, index=False).replace("\n", ",\n")),
        ),
        ("x.jsonl", lambda path: TABLE.to_json(path, orient="records", lines=True)),
        ("x.json", lambda path: TABLE.to_json(path, orient="records")),
        ("x.csv.gz", lambda path: TABLE.to_csv(path, index=False)),
        ("x.csv", lambda path: TABLE.to_csv(path, index=False, sep=";")),
        ("x.csv", lambda path: TABLE.to_csv(path, sep=";", decimal=",", encoding="utf-8-sig")),
        ("x.csv", lambda path: TABLE.to_csv(path, index=False, sep="\t", encoding="utf-16")),
        ("x.npy", lambda path: np.save(path, X)),
        ("x.csv", lambda path: TABLE.to_csv(path, index=False, header=False)),
        ("x.csv", lambda path: pd.DataFrame(X).to_csv(path, index=False)),
        ("x.jsonl", lambda path: pd.DataFrame({"v": [*X.tolist()]}).to_json(path, orient="records", lines=True)),
        ("x.parquet", lambda path: pd.DataFrame({"v": [*X]}).to_parquet(path)),
        ("x.csv", lambda path: TABLE.rename(columns="{}, mm, wide".format).to_csv(path, index=False, sep=";")),
        ("x.tsv", lambda path: TABLE.rename(columns="{}, mm".format).to_csv(path, index=False, sep="\t")),
        ("x.csv", lambda path: (TABLE + 0.0).to_csv(path, index=False, header=False, sep=";", decimal=",")),
        ("x.json", lambda path: TABLE.rename(columns={"b": "start_time"}).to_json(path, orient="records")),
        ("x.json", lambda path: TABLE.astype(str).to_json(path, orient="records")),
    ],
)
def test_array_or_table_is_the_only_input(
    model: str, store: Store, tmp_path: Path, name: str, write: Callable[[Path], None]
) -> None:
    write(tmp_path / name)
    assert read(samples_file(tmp_path / name, model, store)) == {"values": X.tolist()}


@pytest.mark.parametrize("mark", ["?", " ?", "-", "NA", ""])
def test_mark_of_a_missing_number_is_one(model: str, store: Store, tmp_path: Path, mark: str) -> None:
    TABLE.astype(object).replace({"b": {5.0: mark}}).to_csv(tmp_path / "x.csv", index=False)
    with np.load(str(samples_file(tmp_path / "x.csv", model, store))) as arrays:
        np.testing.assert_equal(arrays["values"], np.where(X == 5, np.nan, X))


@pytest.mark.parametrize("column", ["labels", "label", "target", "class", "y", "Label", " Target"])
def test_column_has_the_labels(model: str, store: Store, tmp_path: Path, column: str) -> None:
    TABLE.assign(**{column: list("uvwuvw")}).to_csv(tmp_path / "x.csv", index=False)
    assert read(samples_file(tmp_path / "x.csv", model, store))["labels"] == list("uvwuvw")


def test_first_row_of_numbers_and_a_text_is_no_row_of_names(model: str, store: Store, tmp_path: Path) -> None:
    TABLE.assign(species=list("uvwuvw")).to_csv(tmp_path / "iris.data", index=False, header=False)
    stored = read(samples_file(tmp_path / "iris.data", model, store))
    assert (stored["values"], stored["labels"]) == (X.tolist(), list("uvwuvw"))


def test_names_of_columns_may_be_numbers(model: str, store: Store, tmp_path: Path) -> None:
    columns = ("400", "410", "420", "430")
    spectra = TABLE.set_axis(columns, axis=1)
    spectra.assign(label=Y).to_csv(tmp_path / "x.csv", index=False)
    assert read(samples_file(tmp_path / "x.csv", model, store)) == {"values": X.tolist(), "labels": Y.tolist()}
    spectra[[*columns[::-1]]].to_csv(tmp_path / "x.csv", index=False)
    assert read(samples_file(tmp_path / "x.csv", model, store, columns=columns)) == {"values": X.tolist()}


def test_times_among_numbers_are_refused(model: str, store: Store, tmp_path: Path) -> None:
    TABLE.assign(b=pd.Timestamp("2026-01-01")).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(ConfigError, match=r"column 'b' holds times\. Fix: write them as numbers"):
        samples_file(tmp_path / "x.parquet", model, store)


def test_texts_of_digits_among_numbers_are_refused(model: str, store: Store, tmp_path: Path) -> None:
    TABLE.assign(b="007").to_parquet(tmp_path / "x.parquet")
    with pytest.raises(ConfigError, match="column 'b' holds texts, such as '007' in row 1"):
        samples_file(tmp_path / "x.parquet", model, store)


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_column_may_have_any_name(store: Store, tmp_path: Path, kind: str) -> None:
    graph = "m (float[n, 1] file, float[n, 1] b) => (float[n, 1] y) { y = Add(file, b) }"
    model = onnx_text.save(tmp_path / "m.onnx", graph)
    (tmp_path / "x.csv").write_text("file,b\n1.5,2.5\n3.5,4.5\n")
    pd.read_csv(tmp_path / "x.csv").to_json(tmp_path / "x.json", orient="records")
    stored = str(samples_file(tmp_path / f"x.{kind}", model, store))
    assert read(stored) == {"file": [[1.5], [3.5]], "b": [[2.5], [4.5]]}
    assert read(str(read_npz_split(Path(stored)).save(tmp_path, "test"))) == read(stored)


def test_names_of_rows_are_no_values_even_where_the_first_row_lacks_its_last(
    model: str, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "x.csv").write_text('"a","b","c","d"\n"1",10,20,30,NA\n"2",11,21,31,41\n')
    with np.load(str(samples_file(tmp_path / "x.csv", model, store))) as arrays:
        np.testing.assert_equal(arrays["values"], [[10, 20, 30, np.nan], [11, 21, 31, 41]])


@pytest.mark.parametrize("names", ["a,b,c,d", "a,b,c"])
def test_rows_of_more_values_than_names_are_refused(model: str, store: Store, tmp_path: Path, names: str) -> None:
    (tmp_path / "x.csv").write_text(f"{names}\n0.5,1.5,2.5,3.5,4.5\n5.5,6.5,7.5,8.5,9.5\n")
    with pytest.raises(ConfigError, match=r"more values than names of columns: a, b, c(, d)?\. Fix: name"):
        samples_file(tmp_path / "x.csv", model, store)


def test_texts_of_json_that_begin_with_a_zero_stay_texts(model: str, store: Store, tmp_path: Path) -> None:
    TABLE.assign(label=["01", "1"] * 3).to_json(tmp_path / "x.json", orient="records")
    assert read(samples_file(tmp_path / "x.json", model, store))["labels"] == ["01", "1"] * 3


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_missing_flag_is_a_missing_number(model: str, store: Store, tmp_path: Path, kind: str) -> None:
    table = TABLE.assign(b=pd.array([True, None, False, True, False, True], "boolean"))
    write = {"csv": table.to_csv, "json": table.to_json, "parquet": table.to_parquet}[kind]
    write(tmp_path / f"x.{kind}")
    with np.load(str(samples_file(tmp_path / f"x.{kind}", model, store))) as arrays:
        np.testing.assert_equal(arrays["values"][:, 1], [1, np.nan, 0, 1, 0, 1])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, "x", 2, 3, 4, 5], "neither numbers alone nor texts alone. Fix: write one"),
        ([[1, 2], [3], *[[0, 0]] * 4], "lists of several lengths. Fix: pad them"),
    ],
)
def test_column_of_mixed_values_is_named(
    model: str, store: Store, tmp_path: Path, values: list[object], message: str
) -> None:
    TABLE.assign(b=values).to_json(tmp_path / "x.json", orient="records")
    with pytest.raises(ConfigError, match=re.escape(f"column 'b' holds {message}")):
        samples_file(tmp_path / "x.json", model, store)


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_times_to_split_by_may_have_a_zone_and_are_never_missing(
    model: str, store: Store, tmp_path: Path, zone: str | None
) -> None:
    clocks_go_back = pd.date_range("2026-10-25", periods=len(X), freq="h", tz=zone)
    times = pd.Series(clocks_go_back[::-1])
    TABLE.assign(t=times).to_parquet(tmp_path / "x.parquet")
    stored = read(samples_file(tmp_path / "x.parquet", model, store, time="t"))
    assert stored["split_times"] == sorted({*stored["split_times"]}, reverse=True)
    assert len(stored["split_times"]) == len(X)
    TABLE.assign(t=times.where(times.index != 1)).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(ConfigError, match=r"1 rows have no value in the column 't' to split by\. Fix: leave them out"):
        samples_file(tmp_path / "x.parquet", model, store, time="t")


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_column_of_a_text_input_is_read_as_it_is_written(store: Store, tmp_path: Path, suffix: str) -> None:
    text = "m (string[n] a, string[n] b) => (string[n] y) { y = Identity(a) }"
    model, columns = onnx_text.save(tmp_path / "m.onnx", text), {"a": ["12", "7"], "b": ["007", "True"]}
    pd.DataFrame(columns).to_csv(tmp_path / "x.csv", index=False)
    pd.DataFrame(columns).to_json(tmp_path / "x.json", orient="records")
    assert read(samples_file(tmp_path / f"x.{suffix}", model, store)) == columns


def test_missing_category_is_an_empty_text(store: Store, tmp_path: Path) -> None:
    model = onnx_text.save(tmp_path / "m.onnx", "m (string[n] text) => (string[n] y) { y = Identity(text) }")
    pd.DataFrame({"text": pd.Categorical(["ab", None])}).to_parquet(tmp_path / "x.parquet")
    assert read(samples_file(tmp_path / "x.parquet", model, store)) == {"text": ["ab", ""]}


def test_empty_cell_among_texts_is_an_empty_text_and_no_label(store: Store, tmp_path: Path) -> None:
    model = onnx_text.save(tmp_path / "m.onnx", "m (string[n] text) => (string[n] y) { y = Identity(text) }")
    pd.DataFrame({"text": ["ab", ""], "label": ["u", "v"]}).to_csv(tmp_path / "x.csv", index=False)
    assert read(samples_file(tmp_path / "x.csv", model, store))["text"] == ["ab", ""]
    pd.DataFrame({"text": ["ab", "c"], "label": ["u", ""]}).to_csv(tmp_path / "x.csv", index=False)
    with pytest.raises(ConfigError, match=r"1 rows have no text in the column 'label'\. Fix: leave out rows without"):
        samples_file(tmp_path / "x.csv", model, store)


def test_input_of_that_name_is_no_label(store: Store, tmp_path: Path) -> None:
    two = onnx_text.save(tmp_path / "two.onnx", "two (float[n] a, float[n] y) => (float[n] z) { z = Add(a, y) }")
    TABLE.rename(columns={"b": "y"})[["a", "y"]].to_csv(tmp_path / "x.csv", index=False)
    stored = read(samples_file(tmp_path / "x.csv", two, store))
    assert stored == {"a": X[:, 0].tolist(), "y": X[:, 1].tolist()}


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
