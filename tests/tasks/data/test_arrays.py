"""The user's own arrays: every way in which a file can be wrong is told with its name."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tasks.data.arrays import Arrays
from tasks.data.dataset import SPLITS, read_split
from tasks.errors import StageError

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write four sound splits; a test damages one."""
    random = np.random.default_rng(0)
    for name in SPLITS:
        inputs = random.standard_normal((6, 3, 4, 4)).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", inputs=inputs, labels=np.arange(6) % 2)

    def damage(name: str, content: bytes | None = None, **arrays: object) -> Path:
        path = tmp_path / f"{name}.npz"
        if content is None:
            np.savez(path, **arrays)
        else:
            path.write_bytes(content)
        return path

    return damage


def config(folder: Path, **changes: object) -> Arrays:
    return Arrays.model_validate({"folder": folder, "labels": ("cat", "dog")} | changes)


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
    return bytes(content)


def test_arrays_load_when_files_are_sound(write: Write, tmp_path: Path) -> None:
    dataset = config(tmp_path, layout="NHWC").load()
    assert tuple(dataset.splits) == SPLITS
    assert dataset.signature.inputs[0].shape == ("batch", 3, 4, 4)
    assert (dataset.signature.layout, dataset.signature.labels) == ("NHWC", ("cat", "dog"))
    assert config(tmp_path).files() == tuple(tmp_path / f"{name}.npz" for name in SPLITS)


def test_arrays_become_float32_and_int64_when_stored_otherwise(write: Write) -> None:
    path = write("test", inputs=np.ones((2, 3, 4, 4), np.uint8), labels=np.array([0, 1], np.uint8))
    split = read_split(path)
    assert (split.inputs.dtype, split.labels.dtype) == (np.float32, np.int64)


@pytest.mark.parametrize("name", SPLITS)
def test_arrays_fail_naming_the_file_when_it_is_missing(write: Write, tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.npz").unlink()
    with pytest.raises(StageError, match=rf"{name}\.npz: not an \.npz file"):
        config(tmp_path).load()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"PK\x03\x04 this is no archive", id="rubbish after the magic"),
        pytest.param(b"hello", id="text"),
        pytest.param(npy(np.zeros(3)), id="npy instead of npz"),
    ],
)
def test_arrays_fail_naming_the_file_when_it_is_no_archive(write: Write, tmp_path: Path, content: bytes) -> None:
    write("validation", content)
    with pytest.raises(StageError, match=r"validation\.npz: not an \.npz file"):
        config(tmp_path).load()


def test_arrays_fail_naming_the_file_when_it_is_truncated_or_corrupted(write: Write, tmp_path: Path) -> None:
    whole = (tmp_path / "train.npz").read_bytes()
    for content in (whole[:-1], whole[: len(whole) // 2], whole[:10], corrupted(tmp_path / "other.npz")):
        write("train", content)
        with pytest.raises(StageError, match=r"train\.npz: not an \.npz file"):
            config(tmp_path).load()


GOOD, LABELS = np.zeros((4, 3, 4, 4), np.float32), np.zeros(4, np.int64)


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        pytest.param({"inputs": GOOD}, "not an .npz file with the arrays", id="no labels"),
        pytest.param({"labels": LABELS}, "not an .npz file with the arrays", id="no inputs"),
        pytest.param({"inputs": GOOD, "labels": LABELS[:3]}, "labels must be one an input", id="too few labels"),
        pytest.param({"inputs": GOOD, "labels": LABELS[:, None]}, "labels must be one an input", id="2-D labels"),
        pytest.param({"inputs": np.float32(1), "labels": LABELS}, "labels must be one an input", id="scalar inputs"),
        pytest.param({"inputs": GOOD, "labels": np.int64(1)}, "labels must be one an input", id="scalar labels"),
        pytest.param({"inputs": GOOD.astype(str), "labels": LABELS}, "inputs are <U32", id="text inputs"),
        pytest.param({"inputs": GOOD, "labels": np.array(list("abab"))}, "labels <U1", id="text labels"),
        pytest.param({"inputs": GOOD, "labels": LABELS + 0.5}, "labels float64", id="fractional labels"),
        pytest.param({"inputs": GOOD.astype(object), "labels": LABELS}, "not an .npz file", id="pickled objects"),
    ],
)
def test_arrays_fail_naming_the_file_when_its_arrays_are_wrong(
    write: Write, tmp_path: Path, arrays: dict[str, object], told: str
) -> None:
    write("calibration", **arrays)
    with pytest.raises(StageError) as caught:
        config(tmp_path).load()
    assert str(caught.value).startswith(f"{tmp_path / 'calibration.npz'}: ")
    assert told in str(caught.value)


@pytest.mark.parametrize("labels", [[0, 1, 2, 1], [-1, 0, 1, 0], [0, 1, 0, 7]])
def test_arrays_fail_naming_file_and_labels_when_out_of_range(write: Write, tmp_path: Path, labels: list[int]) -> None:
    write("test", inputs=GOOD, labels=np.array(labels))
    wrong = next(n for n in labels if n not in (0, 1))
    with pytest.raises(StageError, match=rf"test\.npz: labels \[{wrong}\] are out of range.*0 to 1 are allowed"):
        config(tmp_path).load()


def test_arrays_fail_telling_all_shapes_when_one_split_has_another(write: Write, tmp_path: Path) -> None:
    write("test", inputs=GOOD[:, :, :2], labels=LABELS)
    with pytest.raises(StageError, match=r"differ in shape: .*'test': \(3, 2, 4\)"):
        config(tmp_path).load()
