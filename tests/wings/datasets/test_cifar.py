"""CIFAR: a real archive in the real format is read; a damaged or missing one is one clear sentence."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_images import write_cifar
from static_files import served

from gauntlet.core.errors import StageError
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.splits import SPLITS
from gauntlet.images.preprocessing import preprocess
from tasks.data import data
from wings.datasets.cifar import Cifar

Write = Callable[..., Path]
SMALL = {"validation_images": 20, "calibration_images": 10}


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that writes a small CIFAR archive and returns its folder, `tmp_path/cifar`."""

    def write(kind: str = "cifar10", **options: object) -> Path:
        return write_cifar(tmp_path / "cifar", monkeypatch, kind, **options)

    return write


@pytest.mark.parametrize("unpack", [True, False], ids=["folder", "archive"])
def test_cifar10_is_read_as_torchvision_reads_it_when_it_is_unpacked_or_not(cifar: Write, unpack: bool) -> None:
    from torchvision import datasets

    folder = cifar(unpack=unpack)
    before = sorted(folder.iterdir())
    dataset = Cifar(folder=folder, **SMALL).load()
    wanted = {"train": 90, "validation": 20, "calibration": 10, "test": 30}
    assert {name: len(split) for name, split in dataset.splits.items()} == wanted
    assert tuple(dataset.splits) == SPLITS
    assert dataset.signature.labels == tuple(f"cifar10-class-{number:02}" for number in range(10))
    assert dataset.signature.inputs[0].shape == ("batch", 3, 32, 32)
    assert sorted(folder.iterdir()) == before  # nothing is written into the user's folder
    if unpack:
        official = datasets.CIFAR10(folder, train=False)
        split = dataset.splits["test"]
        taken = split.take(np.array([7, 3]))["input"]
        assert np.array_equal(taken[0], preprocess(official.data[7], dataset.signature.preprocessing))
        assert np.array_equal(taken[1], preprocess(np.asarray(official[3][0]), dataset.signature.preprocessing))
        assert split.labels.tolist() == official.targets


def test_cifar100_has_its_fine_classes_when_read(cifar: Write) -> None:
    dataset = Cifar(
        classes=100, folder=cifar("cifar100", a_class=5, test_a_class=1), validation_images=100, calibration_images=100
    ).load()
    assert dataset.signature.labels[99] == "cifar100-class-99"
    assert dataset.signature.preprocessing.mean == (0.5071, 0.4865, 0.4409)
    assert [np.unique(split.labels).size for split in dataset.splits.values()] == [100] * 4


def test_cifar_splits_are_disjoint_stratified_and_decided_by_the_seed(cifar: Write) -> None:
    folder = cifar()
    first, again, other = (Cifar(folder=folder, seed=seed, **SMALL).load().splits for seed in (0, 0, 1))
    pictures = [{p.tobytes() for p in split.pixels} for split in first.values()]
    assert sum(map(len, pictures)) == len(set.union(*pictures)) == 150
    assert all(np.ptp(np.bincount(split.labels, minlength=10)) == 0 for split in first.values())
    assert all(np.array_equal(first[name].pixels, again[name].pixels) for name in SPLITS)
    assert not np.array_equal(first["validation"].pixels, other["validation"].pixels)
    assert np.array_equal(first["test"].pixels, other["test"].pixels)


def test_cifar_is_a_part_of_itself_when_a_quick_try_is_wanted(cifar: Write) -> None:
    splits = Cifar(folder=cifar(), train_images=40, test_images=10, **SMALL).load().splits
    wanted = {"train": [4] * 10, "validation": [2] * 10, "calibration": [1] * 10, "test": [1] * 10}
    assert {name: np.bincount(split.labels).tolist() for name, split in splits.items()} == wanted


def test_cifar_is_the_same_when_saved_and_read_and_in_the_other_layout(
    cifar: Write, workspace: Callable[..., Workspace]
) -> None:
    folder, out = cifar(), workspace()
    config = Cifar(folder=folder, layout="NHWC", **SMALL)
    report = data(config, out, files=config.files())
    report.raise_if_blocked()
    assert report.facts.images["train"] == 90
    assert report.facts.signature.layout == "NHWC"
    channels_first = Cifar(folder=folder, **SMALL).load().splits["train"]
    split = read_split(out.path(report.artifacts["train"]))
    assert split.pixels.dtype == np.uint8  # a quarter of the inputs
    inputs = split.take(slice(5, 9))["input"]
    assert (inputs.shape, inputs.dtype) == ((4, 32, 32, 3), np.float32)
    assert np.array_equal(inputs.transpose(0, 3, 1, 2), channels_first.take(slice(5, 9))["input"])
    assert np.array_equal(split.labels, channels_first.labels)


def test_cifar_leaves_out_and_names_the_training_pictures_that_are_in_the_test_set(
    cifar: Write, workspace: Callable[..., Workspace]
) -> None:
    report = data(Cifar(folder=cifar(copies=4), **SMALL), workspace())
    report.raise_if_blocked()
    assert report.facts.images["train"] == 86
    (check,) = [check for check in report.checks if not check.passed]
    assert (check.name, check.value, check.severity) == ("data.duplicates_removed", 4, "warning")
    assert "training image 2 is test image 2" in check.detail


def test_cifar_is_refused_and_named_when_a_file_is_damaged(cifar: Write) -> None:
    folder = cifar(unpack=True)
    batch = folder / "cifar-10-batches-py" / "data_batch_3"
    batch.write_bytes(batch.read_bytes()[:-1])
    (folder / "cifar-10-batches-py" / "test_batch").unlink()
    with pytest.raises(StageError) as caught:
        Cifar(folder=folder).load()
    assert "cifar-10-batches-py: damaged or incomplete: ['data_batch_3', 'test_batch']" in str(caught.value)
    assert "data.download=true" in str(caught.value)


def test_cifar_is_refused_before_it_is_unpickled_when_somebody_else_wrote_a_file(cifar: Write, tmp_path: Path) -> None:
    folder, trace = cifar(unpack=True), tmp_path / "ran"
    attack = f"cos\nsystem\n(S'touch {trace}'\ntR.".encode()
    (folder / "cifar-10-batches-py" / "data_batch_1").write_bytes(attack)
    with pytest.raises(StageError, match="damaged or incomplete"):
        Cifar(folder=folder).load()
    assert not trace.exists()
    pickle.loads(attack)  # the attack is one
    assert trace.exists()


def test_cifar_is_refused_when_the_archive_is_not_the_original(cifar: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cifar()
    monkeypatch.undo()
    with pytest.raises(
        StageError, match=r"cifar-10-python\.tar\.gz: damaged or incomplete: its MD5 is not the original"
    ):
        Cifar(folder=folder).load()


@pytest.mark.parametrize("classes", [10, 100])
def test_cifar_says_what_is_expected_where_when_it_is_missing(tmp_path: Path, classes: int) -> None:
    config = Cifar(folder=tmp_path / "nowhere", classes=classes)
    with pytest.raises(StageError) as caught:
        config.load()
    for told in (str(tmp_path / "nowhere"), config.archive, config.unpacked, "data.download=true"):
        assert told in str(caught.value)


def test_cifar_says_why_when_it_cannot_be_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision import datasets

    monkeypatch.setattr(datasets.CIFAR10, "url", "http://127.0.0.1:9/cifar-10-python.tar.gz")  # nobody listens there
    with pytest.raises(StageError, match=r"cannot be downloaded from http://127\.0\.0\.1:9/.*refused"):
        Cifar(folder=tmp_path / "data", download=True).load()


def test_cifar_is_downloaded_once_when_it_is_wanted(
    cifar: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision import datasets

    config = Cifar(folder=tmp_path / "data", download=True, **SMALL)
    with served(cifar()) as address:
        monkeypatch.setattr(datasets.CIFAR10, "url", f"{address}/cifar-10-python.tar.gz")
        first = config.load()
    assert np.array_equal(first.splits["train"].pixels, config.load().splits["train"].pixels)


def test_cifar_files_are_what_is_read_when_it_is_unpacked_or_not(cifar: Write) -> None:
    assert [path.name for path in Cifar(folder=cifar()).files()] == ["cifar-10-python.tar.gz"]
    names = {path.name for path in Cifar(folder=cifar(unpack=True)).files()}
    assert {"batches.meta", "test_batch", *(f"data_batch_{number}" for number in range(1, 6))} == names


def test_normalization_is_the_users(cifar: Write) -> None:
    dataset = Cifar(folder=cifar(), mean=(0.1, 0.2, 0.3), std=(0.5, 0.5, 0.5), **SMALL).load()
    split = dataset.splits["test"]
    assert dataset.signature.inputs[0].name == "input"
    expected = (split.pixels[:2].transpose(0, 3, 1, 2) / 255 - np.reshape([0.1, 0.2, 0.3], (3, 1, 1))) / 0.5
    np.testing.assert_allclose(split.take(slice(0, 2))["input"], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mean": (0.5, 0.5)}, r"mean \[0.5, 0.5\] and std .*; give three of each \(RGB\) or one"),
        ({"std": (0.5, 0.5, 0.0)}, "every std above 0"),
        ({"hog": {"pixels_per_cell": 20}}, "a block of .* = 40 pixels is larger than image_size 32"),
        ({"hog": {}, "mean": (0.5,) * 3, "std": (0.5,) * 3}, "histograms are of one channel, and mean has 3"),
    ],
)
def test_normalization_that_cannot_be_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cifar(**given)
