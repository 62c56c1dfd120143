"""Tables in the files of other programs become the files that a run takes, or are refused by column and fix."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_text
import pandas as pd
import pytest

from gauntlet.core.artifact import Store
from gauntlet.core.errors import ConfigError
from gauntlet.datasets.splits import read_npz_split
from wings.python_api.objects import samples_file
from wings.python_api.sample_files import read_samples

from .conftest import TABLE, X, Y, read


@pytest.mark.parametrize(("header", "name"), [("a,b,label,label", "label"), ("a,a,c,label", "a")])
def test_columns_of_one_name_are_refused(tmp_path: Path, store: Store, header: str, name: str) -> None:
    model = onnx_text.save(tmp_path / "open.onnx", "m (float[N, M] values) => (float[N, M] y) { y = Relu(values) }")
    (tmp_path / "x.csv").write_text(f"{header}\n1,2,0,0\n3,4,1,1\n")
    with pytest.raises(ConfigError, match=rf"x\.csv: .*two columns are called '{name}'\. Fix: leave one out"):
        samples_file(tmp_path / "x.csv", model, store)


def test_table_without_pandas_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.csv").write_text("a,label\n1,0\n")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"--data .*x\.csv: tables are read by pandas.*Fix: pip install pandas"):
        read_samples(str(tmp_path / "x.csv"))


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
    with pytest.raises(ConfigError, match=r"1 rows have no value in the column 'label', the first of them row 2\. Fix"):
        samples_file(tmp_path / "x.csv", model, store)


@pytest.mark.parametrize("row", ["1,2,3,", ",,,"])
def test_row_without_a_number_as_its_label_is_named(model: str, store: Store, tmp_path: Path, row: str) -> None:
    (tmp_path / "x.csv").write_text(f"a,b,c,label\n1,2,3,0\n{row}\n4,5,6,1\n")
    message = r"x\.csv.*1 rows have no value in the column 'label', the first of them row 2\. Fix: leave out"
    with pytest.raises(ConfigError, match=message):
        samples_file(tmp_path / "x.csv", model, store)


def test_input_of_that_name_is_no_label(store: Store, tmp_path: Path) -> None:
    two = onnx_text.save(tmp_path / "two.onnx", "two (float[n] a, float[n] y) => (float[n] z) { z = Add(a, y) }")
    TABLE.rename(columns={"b": "y"})[["a", "y"]].to_csv(tmp_path / "x.csv", index=False)
    stored = read(samples_file(tmp_path / "x.csv", two, store))
    assert stored == {"a": X[:, 0].tolist(), "y": X[:, 1].tolist()}
