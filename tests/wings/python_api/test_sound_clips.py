"""Sounds and tables as samples: folders of .wav files, and columns that are taken by name."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnx_text
import pandas as pd
import pytest
from scipy.io import wavfile

from configs.brought_model import infer_config
from gauntlet.core.artifact import Store
from gauntlet.core.errors import ConfigError
from wings.python_api.objects import samples_file

RATE = 8000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write tones of two pitches, 0.1 s long, in folders of their names."""
    for name, pitch in (("high", 880), ("low", 220)):
        (tmp_path / "clips" / name).mkdir(parents=True)
        for number in range(20):
            wave = np.sin(2 * np.pi * pitch * np.arange(800) / RATE + number)
            wavfile.write(tmp_path / "clips" / name / f"{number}.wav", RATE, (32767 * wave).astype(np.int16))
    return tmp_path / "clips"


def model(path: Path, shape: str) -> str:
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[n, {shape}] wave) => (float[n, 2] scores) {{'
        "flat = Flatten(wave) energy = ReduceL2 <axes = [1]> (flat)"
        "zero = Sub(energy, energy) both = Concat <axis = 1> (energy, zero) scores = Softmax <axis = 1> (both) }"
    )
    onnx.save(proto, path)
    return str(path)


def stored(folder: Path, model: str, **options: str) -> dict[str, np.ndarray]:
    file = samples_file(folder, model, Store(folder.parent / "store"), **options)
    with np.load(str(file)) as arrays:
        return {name: arrays[name] for name in arrays.files}


@pytest.mark.parametrize(
    ("declared", "shape"), [("800", (40, 800)), ("t", (40, 800)), ("1, 1000", (40, 1, 1000)), ("t, 1", (40, 800, 1))]
)
def test_clips_have_the_shape_of_the_input(folder: Path, tmp_path: Path, declared: str, shape: tuple[int, ...]) -> None:
    arrays = stored(folder, model(tmp_path / "m.onnx", declared))
    assert arrays["wave"].shape == shape
    assert 0.99 < np.abs(arrays["wave"]).max() <= 1
    assert sorted(set(arrays["labels"].tolist())) == ["high", "low"]
    if shape[-1] == 1000:
        assert not arrays["wave"][:, 0, 800:].any()


def test_sounds_of_other_kinds_are_named_and_counted(folder: Path, tmp_path: Path) -> None:
    notes: dict[str, str] = {}
    for name in ("high/a.FLAC", "low/b.flac", "low/c.mp3", "low/README", ".hidden.ogg"):
        (folder / name).touch()
    samples_file(folder, model(tmp_path / "m.onnx", "800"), Store(tmp_path / "store"), notes=notes)
    assert notes["files"].startswith("2 .flac, 1 README, 1 .mp3 left out: only .wav is read")


def test_folder_of_other_sounds_alone_is_refused_with_their_kinds(tmp_path: Path) -> None:
    (tmp_path / "clips" / "low").mkdir(parents=True)
    for name in ("low/a.FLAC", "low/b.mp3"):
        (tmp_path / "clips" / name).touch()
    with pytest.raises(ConfigError, match=r"clips: 1 \.flac, 1 \.mp3 left out: only \.wav is read\. Fix: convert"):
        stored(tmp_path / "clips", model(tmp_path / "m.onnx", "800"))


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int32, np.float32])
def test_every_width_is_scaled_to_one_and_channels_are_averaged(tmp_path: Path, kind: type) -> None:
    wave = np.stack([np.full(100, 0.5), np.zeros(100)], axis=1)
    whole = {np.uint8: 128 + 127 * wave, np.int16: 32767 * wave, np.int32: (2**31 - 1) * wave, np.float32: wave}[kind]
    (tmp_path / "clips").mkdir()
    wavfile.write(tmp_path / "clips" / "a.wav", RATE, whole.astype(kind))
    arrays = stored(tmp_path / "clips", model(tmp_path / "m.onnx", "t"))
    assert "labels" not in arrays
    np.testing.assert_allclose(arrays["wave"], np.full((1, 100), 0.25), atol=0.005)


def test_folders_are_the_classes_of_a_brought_model(folder: Path, tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", "800")
    file = samples_file(folder, path, Store(tmp_path / "store"))
    found = infer_config(Path(path), Path(str(file)), None, {})
    assert found.values["data"]["task"] == "classification"
    assert found.notes["samples"].endswith("class indices ASSUMED to be the labels, sorted")


@pytest.mark.parametrize(("size", "kept", "refused"), [(None, 999, True), (b"\0", 1644, True), (b"\xff", 1644, False)])
def test_file_that_ends_early_is_refused_unless_it_was_piped(
    folder: Path, tmp_path: Path, size: bytes | None, kept: int, refused: bool
) -> None:
    content = bytearray((folder / "high" / "0.wav").read_bytes()[:kept])
    content[4:8] = content[40:44] = 4 * size if size else content[4:8]
    (folder / "high" / "0.wav").write_bytes(content)
    with pytest.raises(ConfigError, match=r"high/0\.wav: not a readable \.wav file") if refused else nullcontext():
        assert stored(folder, model(tmp_path / "m.onnx", "t"))["wave"].shape == (40, 800)


def test_clips_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has 800 samples, and the model takes 500. Fix: cut it"):
        stored(folder, model(tmp_path / "short.onnx", "500"))
    with pytest.raises(ConfigError, match="takes no waveforms"):
        stored(folder, model(tmp_path / "picture.onnx", "1, 64, 64"))
    wavfile.write(folder / "high" / "other.wav", 16000, np.ones(10, np.int16))
    with pytest.raises(ConfigError, match="different sample rates"):
        stored(folder, model(tmp_path / "m.onnx", "t"))
    (folder / "high" / "other.wav").write_bytes(b"RIFF no sound")
    with pytest.raises(ConfigError, match=r"high/other\.wav: not a readable \.wav file"):
        stored(folder, model(tmp_path / "m.onnx", "t"))
    with pytest.raises(ConfigError, match="no column 'speaker' to split by"):
        (folder / "high" / "other.wav").unlink()
        stored(folder, model(tmp_path / "m.onnx", "t"), group="speaker")


X = pd.DataFrame(np.random.default_rng(0).random((60, 3)), columns=["leaf width", "leaf length", "age"])
Y = (X["leaf width"] > X["age"]).astype(int)


@pytest.fixture(params=["logistic.skops", "trees.txt", "trees.json", "trees.ubj"])
def model_of_columns(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = tmp_path / request.param
    if path.suffix == ".skops":
        skops, linear = pytest.importorskip("skops.io"), pytest.importorskip("sklearn.linear_model")
        skops.dump(linear.LogisticRegression().fit(X, Y), path)
    elif path.suffix == ".txt":
        lightgbm = pytest.importorskip("lightgbm")
        lightgbm.LGBMClassifier(n_estimators=2, verbose=-1).fit(X, Y).booster_.save_model(path)
    else:
        xgboost = pytest.importorskip("xgboost")
        xgboost.XGBClassifier(n_estimators=2).fit(X, Y).get_booster().save_model(path)
    return str(path)


def stored_table(table: pd.DataFrame, model_of_columns: str, folder: Path) -> dict[str, Any]:
    table.to_csv(folder / "table.csv", index=False)
    file = samples_file(folder / "table.csv", model_of_columns, Store(folder / "store"))
    assert file is not None
    with np.load(file) as arrays:
        return {name: arrays[name] for name in arrays.files}


def test_columns_are_put_in_order_and_others_are_left_out(model_of_columns: str, tmp_path: Path) -> None:
    table = X[X.columns[::-1]].assign(id=range(60), target=Y)
    arrays = stored_table(table, model_of_columns, tmp_path)
    np.testing.assert_allclose(arrays["input"], X.to_numpy())
    assert arrays["labels"].tolist() == Y.tolist()


def test_column_of_the_fit_is_an_input_though_it_is_called_as_labels_are(tmp_path: Path) -> None:
    skops, linear = pytest.importorskip("skops.io"), pytest.importorskip("sklearn.linear_model")
    table = X.set_axis(["x", "y", "class"], axis=1)
    skops.dump(linear.LogisticRegression().fit(table, Y), tmp_path / "fitted.skops")
    arrays = stored_table(table[["class", "y", "x"]], str(tmp_path / "fitted.skops"), tmp_path)
    np.testing.assert_allclose(arrays["input"], X.to_numpy())
    assert "labels" not in arrays
    exported = onnx_text.save(tmp_path / "m.onnx", "m (float[n,3] v) => (float[n,3] w) { w = Relu(v) }")
    file = samples_file(tmp_path / "table.csv", exported, Store(tmp_path / "store"), columns=tuple(table))
    np.testing.assert_allclose(np.load(str(file))["v"], X.to_numpy())


def test_table_without_a_column_of_the_fit_or_without_rows_is_refused(model_of_columns: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no column 'age', on which the model was fitted"):
        stored_table(X.drop(columns="age"), model_of_columns, tmp_path)
    with pytest.raises(ConfigError, match=r"table\.csv has no samples"):
        stored_table(X[:0], model_of_columns, tmp_path)


def test_table_with_other_names_is_taken_in_its_own_order(model_of_columns: str, tmp_path: Path) -> None:
    arrays = stored_table(X.set_axis(["one", "two", "three"], axis=1), model_of_columns, tmp_path)
    np.testing.assert_allclose(arrays["input"], X.to_numpy())


def test_columns_with_texts_among_them_are_inputs_of_a_pipeline_fitted_on_them(tmp_path: Path) -> None:
    skops, compose = pytest.importorskip("skops.io"), pytest.importorskip("sklearn.compose")
    table = pd.DataFrame({"x": X["age"], "review": ["good", "bad"] * 30, "city": ["Ulm", None] * 30})
    encoder = pytest.importorskip("sklearn.preprocessing").OneHotEncoder()
    columns = compose.ColumnTransformer([("texts", encoder, ["review", "city"]), ("numbers", "passthrough", ["x"])])
    skops.dump(columns.fit(table.fillna("")), tmp_path / "columns.skops")
    arrays = stored_table(table.assign(id=Y, target=Y), str(tmp_path / "columns.skops"), tmp_path)
    assert {*arrays} == {"x", "review", "city", "labels"}
    np.testing.assert_array_equal(arrays["city"], ["Ulm", ""] * 30)


def test_table_beside_its_labels_is_put_in_order_too(model_of_columns: str, tmp_path: Path) -> None:
    file = samples_file((X[X.columns[::-1]], Y), model_of_columns, Store(tmp_path / "store"))
    assert file is not None
    np.testing.assert_allclose(np.load(file)["input"], X.to_numpy())


@pytest.mark.parametrize(("option", "key"), [("group", "split_groups"), ("time", "split_times")])
def test_column_that_splits_is_no_input(model_of_columns: str, tmp_path: Path, option: str, key: str) -> None:
    days = pd.date_range("2026-01-01", periods=60)
    X.assign(day=days, target=Y).to_parquet(tmp_path / "table.parquet")
    file = samples_file(
        tmp_path / "table.parquet", model_of_columns, Store(tmp_path / "store"), **cast(Any, {option: "day"})
    )
    with np.load(str(file)) as arrays:
        assert {*arrays.files} == {"input", "labels", key}
        assert arrays[key][1].startswith("2026-01-02T00:00")
    with pytest.raises(ConfigError, match="no column 'week' to split by; found: leaf width, leaf length, age, day"):
        samples_file(
            tmp_path / "table.parquet", model_of_columns, Store(tmp_path / "store"), **cast(Any, {option: "week"})
        )


def test_column_that_splits_stays_an_input_where_the_model_was_fitted_on_it(
    model_of_columns: str, tmp_path: Path
) -> None:
    X.assign(target=Y).to_csv(tmp_path / "table.csv", index=False)
    file = samples_file(tmp_path / "table.csv", model_of_columns, Store(tmp_path / "store"), time="age")
    with np.load(str(file)) as arrays:
        assert arrays["input"].shape == (60, 3)
        assert arrays["split_times"].tolist() == X["age"].tolist()
    with pytest.raises(ConfigError, match="--time: random samples has no columns"):
        samples_file(None, model_of_columns, Store(tmp_path / "store"), time="age")


@pytest.mark.parametrize("write", ["to_csv", "to_parquet"])
def test_column_of_times_that_splits_nothing_is_named(tmp_path: Path, write: str) -> None:
    columns = {f"c{place}": np.arange(60.0) for place in range(3)} | {"label": np.arange(60) % 2}
    table, file = pd.DataFrame(columns | {"day": pd.date_range("2026-01-01", periods=60)}), str(tmp_path / "t.csv")
    file = file if write == "to_csv" else str(tmp_path / "t.parquet")
    getattr(table, write)(file, index=False)
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n] c0, float[n] c1) => (float[n] y) { y = Add(c0, c1) }'
    )
    onnx.save(proto, tmp_path / "m.onnx")
    notes: dict[str, str] = {}
    samples_file(file, str(tmp_path / "m.onnx"), Store(tmp_path / "store"), notes=notes)
    assert notes["time"].startswith("day holds times, and the split is random")
    notes.clear()
    samples_file(file, str(tmp_path / "m.onnx"), Store(tmp_path / "store"), notes=notes, time="day")
    assert "time" not in notes
