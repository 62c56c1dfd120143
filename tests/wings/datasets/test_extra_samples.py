"""Further samples join the splits that a model learns from, in whatever form these are, and never the test split."""

from pathlib import Path

import numpy as np
import pytest
from small_images import write_pictures

from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.digits import Digits
from gauntlet.datasets.image_folder import ImageFolder
from gauntlet.datasets.splits import ArraySplit
from gauntlet.images.preprocessing import restored_pixels
from tasks.data import data
from wings.datasets.extended_split import ExtendedSplit

SMALL = {"validation_images": 200, "calibration_images": 100, "test_images": 100, "image_size": 8}


def samples(folder: Path, count: int = 70, **changes: np.ndarray) -> Path:
    """Write samples of random pixels for digits of 8x8 pixels."""
    pixels = np.random.default_rng(1).uniform(-1, 1, (count, 3, 8, 8)).astype(np.float32)
    path = folder / "extra.npz"
    np.savez(path, **({"input": pixels, "labels": np.arange(count) % 10} | changes))
    return path


def test_each_split_but_the_test_gets_its_share(tmp_path: Path, workspace) -> None:
    before = Digits(**SMALL).load().splits
    store: Workspace = workspace()
    report = data(Digits(**SMALL), store, extra=(samples(tmp_path),))
    after = {name: read_split(store.path(artifact)) for name, artifact in report.artifacts.items()}
    added = {name: len(after[name]) - len(before[name]) for name in before}
    assert sum(added.values()) == 70
    assert added["test"] == 0
    for name in ("train", "validation", "calibration"):
        assert added[name] == pytest.approx(70 * len(before[name]) / 1697, abs=1)
    assert np.array_equal(after["test"].take(slice(None))["input"], before["test"].take(slice(None))["input"])
    assert not report.failures


def test_sample_that_is_known_already_is_left_out(tmp_path: Path, workspace) -> None:
    splits = Digits(**SMALL).load().splits
    known = np.concatenate([splits[name].take(slice(0, 2))["input"] for name in ("test", "train")])
    new = np.random.default_rng(1).uniform(-1, 1, (3, 3, 8, 8)).astype(np.float32)
    path = samples(tmp_path, input=np.concatenate([known, new, new]), labels=np.zeros(10, np.int64))
    report = data(Digits(**SMALL), workspace(), extra=(path, path))
    assert sum(report.facts.images.values()) == 1797 + 3
    assert not report.failures


def test_files_of_images_are_joined_by_arrays(tmp_path: Path, workspace) -> None:
    pictures = write_pictures(tmp_path / "images", "cat", "dog", count=20, height=8, width=8)
    config = ImageFolder(path=pictures, image_size=8)
    store: Workspace = workspace()
    plain = data(config, store)
    before = read_split(store.path(plain.artifacts["train"]))
    report = data(config, store, extra=(samples(tmp_path, 20, labels=np.arange(20) % 2),))
    after = read_split(store.path(report.artifacts["train"]))
    assert isinstance(after, ExtendedSplit)
    assert report.facts.images["train"] == len(after) > len(before)
    assert after.labels.tolist()[: len(before)] == before.labels.tolist()
    whole, some = after.take(slice(None))["input"], np.array([len(after) - 1, 0, len(before), 1])
    assert np.array_equal(after.take(some)["input"], whole[some])
    assert np.array_equal(whole[: len(before)], before.take(slice(None))["input"])
    assert report.facts.images["test"] == plain.facts.images["test"]
    assert not report.failures
    assert after.take(slice(0, 0))["input"].shape == (0, 3, 8, 8)


@pytest.mark.parametrize("form", ["inputs", "pixels"])
def test_image_of_a_file_that_is_known_already_is_left_out(tmp_path: Path, workspace, form: str) -> None:
    pictures = write_pictures(tmp_path / "images", "cat", "dog", count=20, height=8, width=8)
    config = ImageFolder(path=pictures, image_size=8)
    test = config.load().splits["test"]
    arrays = test.take(slice(None))["input"]
    if form == "pixels":
        arrays = restored_pixels(arrays, test.transform.how, "NCHW")
    path = samples(tmp_path, input=arrays, labels=test.labels)
    report = data(config, workspace(), extra=(path,))
    assert report.facts.images == data(config, workspace()).facts.images


def test_images_that_a_model_took_as_they_are_join_the_normalized_samples(tmp_path: Path, workspace) -> None:
    images = np.random.default_rng(1).integers(0, 256, (30, 8, 8, 3), np.uint8)
    path = tmp_path / "extra.npz"
    np.savez(path, image=images, labels=np.arange(30) % 10)
    store: Workspace = workspace()
    report = data(Digits(**SMALL), store, extra=(path,))
    train = read_split(store.path(report.artifacts["train"]))
    added = train.take(slice(len(Digits(**SMALL).load().splits["train"]), None))["input"]
    expected = (images.transpose(0, 3, 1, 2) / 255 - 0.5) / 0.5
    assert len(added) > 20
    assert all(np.abs(expected - one).max(axis=(1, 2, 3)).min() < 1e-6 for one in added)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.full(70, 12)}, r"labels \[12\] are out of range \(0 to 9\)"),
        ({"labels": np.zeros(70)}, r"labels are float64\[\] a sample, those of the data int64\[\]"),
        ({"input": np.zeros((70, 3, 9, 9), np.float32)}, r"input 'input' is float32\[3, 9, 9\], but the data has"),
        ({"input": np.zeros((70, 3, 8, 8))}, r"input 'input' is float64\[3, 8, 8\], but the data has"),
        ({"other": np.zeros(70)}, r"unknown input 'other'"),
    ],
)
def test_samples_that_do_not_fit_are_refused(tmp_path: Path, workspace, changes, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"extra_samples: .*extra.npz: {message}"):
        data(Digits(**SMALL), workspace(), extra=(samples(tmp_path, **changes),))


def test_samples_without_labels_are_refused(tmp_path: Path, workspace) -> None:
    path = tmp_path / "extra.npz"
    np.savez(path, input=np.zeros((4, 3, 8, 8), np.float32))
    with pytest.raises(ConfigError, match="no 'labels'"):
        data(Digits(**SMALL), workspace(), extra=(path,))


def test_damaged_split_is_named(tmp_path: Path) -> None:
    split = ExtendedSplit(
        ArraySplit({"x": np.zeros((2, 1))}, np.zeros(2, np.int64)), ArraySplit({"x": np.ones((1, 1))})
    )
    path = tmp_path / "train.extended.npz"
    path.write_bytes(b"PK")
    with pytest.raises(StageError, match="not an extended split"):
        read_split(path)
    assert split.take(np.array([2, 1]))["x"].tolist() == [[1], [0]]
