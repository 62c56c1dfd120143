"""The user's own arrays: every way in which a file can be wrong is told with its name."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris

from gauntlet.core.errors import StageError
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.npz_arrays import NpzArrays
from gauntlet.datasets.splits import SPLITS, read_npz_split, require_labels
from tasks.data import data

Write = Callable[..., Path]
RANDOM = np.random.default_rng(0)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write four sound splits; a test damages one."""
    for name in SPLITS:
        inputs = RANDOM.standard_normal((6, 3, 4, 4)).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", inputs=inputs, labels=np.arange(6) % 2)

    def damage(name: str, content: bytes | None = None, **arrays: object) -> Path:
        path = tmp_path / f"{name}.npz"
        if content is None:
            np.savez(path, **arrays)
        else:
            path.write_bytes(content)
        return path

    return damage


def config(path: Path, **changes: object) -> NpzArrays:
    return NpzArrays.model_validate({"path": path, "labels": ("cat", "dog")} | changes)


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def corrupted(path: Path) -> bytes:
    """Return a compressed archive whose directory is whole and whose data is not."""
    np.savez_compressed(path, inputs=np.random.default_rng(0).random((6, 3, 4, 4)), labels=np.zeros(6, np.int64))
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("inputs.npy").header_offset + 60
    content[start : start + 40] = bytes(40)
    path.unlink()
    return bytes(content)


def test_folder_of_splits_is_left_alone_when_it_is_sound(write: Write, tmp_path: Path) -> None:
    dataset = config(tmp_path, layout="NHWC").load()
    assert tuple(dataset.splits) == SPLITS
    assert {len(split) for split in dataset.splits.values()} == {6}
    (spec,) = dataset.signature.inputs
    assert (spec.name, spec.dtype, spec.shape) == ("inputs", "float32", ("batch", 3, 4, 4))
    assert (dataset.signature.layout, dataset.signature.labels) == ("NHWC", ("cat", "dog"))
    assert config(tmp_path).files() == tuple(tmp_path / f"{name}.npz" for name in SPLITS)


def test_folder_of_splits_may_lack_all_but_the_test_split(write: Write, tmp_path: Path) -> None:
    (tmp_path / "train.npz").unlink()
    (tmp_path / "validation.npz").unlink()
    assert tuple(config(tmp_path).load().splits) == ("calibration", "test")


def test_name_that_no_class_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "all.npz"
    np.savez(path, inputs=np.arange(40.0)[:, None], labels=np.array(["dog", "cow"])[np.arange(40) % 2])
    with pytest.raises(StageError, match=r"no class is called 'cow'; classes: cat, dog"):
        config(path, task="classification").load()


def test_one_file_is_divided_when_it_is_given_itself(tmp_path: Path) -> None:
    path = tmp_path / "all.npz"
    inputs, labels = np.arange(100.0)[:, None], np.arange(100) % 2
    np.savez(path, inputs=inputs, labels=labels)
    splits = config(path, layout="none").load().splits
    wanted = {"train": 60, "validation": 10, "calibration": 10, "test": 20}
    assert {name: len(split) for name, split in splits.items()} == wanted
    for split in splits.values():
        assert np.array_equal(split.take(slice(None))["inputs"][:, 0] % 2, split.labels)
    assert config(path).files() == (path,)


def test_parts_are_joined_and_split_when_the_folder_holds_no_split(tmp_path: Path) -> None:
    for number in (2, 0, 1):
        np.savez(tmp_path / f"part-{number}.npz", inputs=np.full((10, 1), number), labels=np.arange(10) % 2)
    dataset = config(tmp_path, split_fractions={"validation": 0, "calibration": 0.5, "test": 0.5}).load()
    values = np.concatenate([split.take(slice(None))["inputs"].ravel() for split in dataset.splits.values()])
    assert sorted(values) == [0] * 10 + [1] * 10 + [2] * 10
    first = dataset.splits["test"].take(slice(0, 8))["inputs"]
    assert len(set(first.ravel().tolist())) > 1  # the first few are not all from the first part


def test_every_array_is_an_input_in_its_own_type_when_there_are_several(
    tmp_path: Path, workspace: Callable[..., Workspace]
) -> None:
    path, out = tmp_path / "all.npz", workspace()
    arrays = {
        "ids": np.arange(300, dtype=np.int64).reshape(100, 3),
        "mask": np.arange(300).reshape(100, 3) % 2 == 0,
        "text": np.array([f"text {number}" for number in range(100)]),
        "picture": RANDOM.standard_normal((100, 2, 2)).astype(np.float16),
    }
    np.savez(path, **arrays)
    report = data(NpzArrays(path=path, layout="none"), out)
    report.raise_if_blocked()
    signature = report.facts.signature
    assert signature.task == "arrays"
    assert {spec.name: (spec.dtype, spec.shape) for spec in signature.inputs} == {
        "ids": ("int64", ("batch", 3)),
        "mask": ("bool", ("batch", 3)),
        "text": ("str", ("batch",)),
        "picture": ("float16", ("batch", 2, 2)),
    }
    seen = []
    for name in SPLITS:
        split = read_split(out.path(report.artifacts[name]))
        taken = split.take(np.arange(len(split)))
        rows = taken["ids"][:, 0] // 3
        assert all(np.array_equal(taken[key], array[rows]) for key, array in arrays.items())
        seen += rows.tolist()
    assert sorted(seen) == list(range(100))


def test_labels_are_not_needed_when_nothing_is_to_be_scored(tmp_path: Path) -> None:
    path = tmp_path / "all.npz"
    np.savez(path, inputs=np.zeros((20, 3)))
    dataset = NpzArrays(path=path).load()
    assert dataset.signature.labels == ()
    assert all(split.labels is None for split in dataset.splits.values())
    with pytest.raises(StageError, match="the data has none"):
        require_labels(dataset.splits["test"])


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.float32])
def test_minus_one_and_one_are_two_classes(tmp_path: Path, kind: type) -> None:
    path = tmp_path / "all.npz"
    np.savez(path, inputs=np.arange(60.0), labels=(np.arange(60) % 2 * 2 - 1).astype(kind))
    dataset = NpzArrays(path=path, task="classification").load()
    assert dataset.signature.labels == ("-1", "1")
    assert {*require_labels(dataset.splits["test"]).tolist()} == {0, 1}


def test_arrays_fail_naming_the_path_when_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"no \.npz file in this folder"):
        config(tmp_path).load()
    with pytest.raises(StageError, match=r"nowhere\.npz: not an \.npz file"):
        config(tmp_path / "nowhere.npz").load()


def test_arrays_fail_naming_the_file_when_it_is_no_archive_truncated_or_corrupted(write: Write, tmp_path: Path) -> None:
    whole = (tmp_path / "train.npz").read_bytes()
    damaged = whole[:-1], whole[: len(whole) // 2], whole[:10], corrupted(tmp_path / "other.npz")
    for content in (*damaged, b"", b"PK\x03\x04 this is no archive", npy(np.zeros(3))):
        write("train", content)
        with pytest.raises(StageError, match=r"train\.npz: not an \.npz file"):
            config(tmp_path).load()


GOOD, LABELS = np.zeros((4, 3, 4, 4), np.float32), np.zeros(4, np.int64)


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        pytest.param({"labels": LABELS}, "no input; save one array per input under its name", id="no inputs"),
        pytest.param({"inputs": GOOD, "labels": LABELS[:3]}, "of one length, got", id="too few labels"),
        pytest.param({"inputs": GOOD, "more": GOOD[:3]}, "of one length, got", id="inputs of two lengths"),
        pytest.param({"inputs": GOOD[:0], "labels": LABELS[:0]}, "of one length, got", id="no sample"),
        pytest.param({"inputs": np.float32(1), "labels": LABELS}, "of one length, got", id="scalar inputs"),
        pytest.param({"inputs": GOOD, "labels": np.int64(1)}, "of one length, got", id="scalar labels"),
        pytest.param(
            {"inputs": GOOD, "labels": LABELS + np.nan}, "labels of 4 of 4 samples are NaN", id="unknown labels"
        ),
        pytest.param({"inputs": GOOD.astype(object), "labels": LABELS}, "not an .npz file", id="pickled objects"),
    ],
)
def test_arrays_fail_naming_the_file_when_its_arrays_are_wrong(
    write: Write, tmp_path: Path, arrays: dict[str, object], told: str
) -> None:
    path = write("calibration", **arrays)
    for read in (lambda: config(tmp_path).load(), lambda: read_npz_split(path)):
        with pytest.raises(StageError) as caught:
            read()
        assert str(caught.value).startswith(f"{tmp_path / 'calibration.npz'}: ")
        assert told in str(caught.value)


def test_arrays_fail_naming_the_file_when_the_header_of_an_array_is_damaged(write: Write) -> None:
    path = write("calibration", inputs=GOOD, labels=LABELS)
    path.write_bytes(path.read_bytes().replace(b"(4, 3, 4, 4), }", b"(4, 3, 4, 4 , {"))
    with pytest.raises(StageError, match=r"calibration\.npz: not an \.npz file of plain arrays"):
        read_npz_split(path)


DIFFERENT = r"the files' arrays differ in name, type or shape: .*'test\.npz': \{"
NO_INPUT = r"test\.npz: 'inputs' is .*; expected numbers, booleans or strings"


@pytest.mark.parametrize(
    ("split", "arrays", "told"),
    [
        ("calibration", {"inputs": GOOD}, r"\['calibration\.npz'\] have no 'labels', the other files do"),
        ("test", {"inputs": GOOD[:, :, :2], "labels": LABELS}, DIFFERENT),
        ("test", {"pictures": GOOD, "labels": LABELS}, DIFFERENT),
        ("test", {"inputs": GOOD, "more": GOOD, "labels": LABELS}, DIFFERENT),
        ("test", {"inputs": np.array(["2020-01-01"] * 4, "M8[D]"), "labels": LABELS}, NO_INPUT),
        ("test", {"inputs": np.array([b"ab"] * 4), "labels": LABELS}, NO_INPUT),
        ("test", {"inputs": np.ones(4, complex), "labels": LABELS}, NO_INPUT),
        ("val", {"inputs": GOOD, "labels": LABELS}, r"are splits, \['val\.npz'\] are not; expected one file per split"),
    ],
)
def test_arrays_fail_naming_the_file_that_does_not_fit_the_others(
    write: Write, tmp_path: Path, split: str, arrays: dict[str, np.ndarray], told: str
) -> None:
    write(split, **arrays)
    with pytest.raises(StageError, match=told):
        config(tmp_path).load()


def test_arrays_fail_naming_every_file_when_several_cannot_be_read(write: Write, tmp_path: Path) -> None:
    write("train", b"hello")
    write("calibration", b"")
    with pytest.raises(StageError, match=r"2 of 4 files cannot be used:\n.*train\.npz: .*\n.*calibration\.npz: "):
        config(tmp_path).load()


def test_splits_without_a_test_split_are_refused(write: Write, tmp_path: Path) -> None:
    (tmp_path / "test.npz").unlink()
    with pytest.raises(StageError, match=r"are splits, but there is no test\.npz"):
        config(tmp_path).load()


def test_splits_in_capitals_are_not_mixed(tmp_path: Path) -> None:
    for name in ("Train", "Test"):
        np.savez(tmp_path / f"{name}.npz", inputs=GOOD, labels=LABELS)
    with pytest.raises(StageError, match=r"\['Test\.npz', 'Train\.npz'\] are not; expected one file per split"):
        config(tmp_path).load()


def test_rows_of_equal_content_are_in_one_split_when_one_file_is_divided(tmp_path: Path) -> None:
    features, classes = load_iris(return_X_y=True)  # rows 101 and 142 are equal
    np.savez(tmp_path / "iris.npz", features=features.astype(np.float32), labels=classes)
    for seed in range(8):
        splits = NpzArrays(path=tmp_path / "iris.npz", seed=seed).load().splits.values()
        assert sum(len(np.unique(split.inputs["features"], axis=0)) for split in splits) == 149


@pytest.mark.parametrize("settings", [{"task": "classification"}, {"labels": ("cat", "dog", "eel")}])
def test_whole_numbers_are_classes_as_floats_too(tmp_path: Path, settings: dict[str, object]) -> None:
    np.savez(tmp_path / "all.npz", x=np.zeros((30, 2), np.float32), labels=np.arange(30) % 3 * 1.0)
    dataset = NpzArrays(path=tmp_path / "all.npz", **settings).load()
    assert (dataset.signature.task, len(dataset.signature.labels)) == ("classification", 3)
    assert dataset.splits["test"].labels.dtype == np.int64
