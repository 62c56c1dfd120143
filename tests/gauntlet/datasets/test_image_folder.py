"""A folder of the user's pictures: read as it lies, refused by name where it is wrong, never whole in memory."""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_images import write_pictures

from flows.record.cache_key import canonical_json
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.datasets import read_split
from gauntlet.datasets.image_folder import ImageFolder
from gauntlet.datasets.splits import SPLITS, batches
from gauntlet.images.decoding import decode_image
from gauntlet.images.preprocessing import preprocess
from tasks.data import DataFacts, data

from .conftest import Make, Write, config


def test_boxes_are_refused_where_nothing_reads_them(pictures: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gauntlet.datasets.image_folder.kinds", lambda _: {})
    with pytest.raises(StageError, match=r"data\.annotations: nothing is installed that reads them"):
        config(pictures("cat", "dog"), annotations="voc", resize="stretch").load()


def test_class_folders_are_split_in_proportion_when_they_are_not_split_yet(pictures: Write) -> None:
    dataset = config(pictures("cat", "dog", "owl", count=20)).load()
    counts = {name: np.bincount(split.labels).tolist() for name, split in dataset.splits.items()}
    assert counts == {"train": [12] * 3, "validation": [2] * 3, "calibration": [2] * 3, "test": [4] * 3}
    files = [name for split in dataset.splits.values() for name in split.files]
    assert len(files) == len(set(files)) == 60
    for split in dataset.splits.values():
        names = [dataset.signature.labels[label] for label in split.labels]
        assert names == [Path(file).parts[0] for file in split.files]


def test_folders_of_splits_are_kept_and_the_missing_ones_are_taken_out_of_train(pictures: Write) -> None:
    root = pictures("train/cat", "train/dog", "test/cat", "test/dog", count=20)
    splits = config(root).load().splits
    counts = {"train": 32, "validation": 4, "calibration": 4, "test": 40}
    assert {name: len(split) for name, split in splits.items()} == counts
    assert all(file.startswith("test/") == (name == "test") for name, split in splits.items() for file in split.files)
    pictures("validation/cat", "validation/dog", "calibration/cat", "calibration/dog", count=3)
    splits = config(root).load().splits
    counts = {"train": 40, "validation": 6, "calibration": 6, "test": 40}
    assert {name: len(split) for name, split in splits.items()} == counts


@pytest.mark.parametrize("name", ["val", "valid"])
def test_val_is_the_validation_split_or_without_another_the_test(pictures: Write, name: str) -> None:
    root = pictures(f"train/{name}", "train/cat", f"{name}/{name}", f"{name}/cat", count=20)  # a class called so, too
    dataset = config(root).load()
    assert dataset.signature.labels == ("cat", name)
    assert {file.partition("/")[0] for file in dataset.splits["test"].files} == {name}
    pictures(f"test/{name}", "test/cat", count=3)
    splits = config(root).load().splits
    assert {split: len(splits[split]) for split in ("validation", "test")} == {"validation": 40, "test": 6}


def test_test_pictures_alone_are_enough_when_nothing_is_to_be_trained(pictures: Write) -> None:
    splits = config(pictures("test/cat", "test/dog", count=20)).load().splits
    assert {name: len(split) for name, split in splits.items()} == {"calibration": 4, "test": 36}


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("resize", ["crop", "stretch"])
@pytest.mark.parametrize("channels", [1, 3])
def test_inputs_are_what_the_signature_says_when_a_saved_split_is_read(
    pictures: Write, workspace: Make, layout: str, resize: str, channels: int
) -> None:
    root, out = pictures("cat", "dog"), workspace()
    values = {"mean": (0.4,) * channels, "std": (0.2,) * channels}
    report = data(config(root, layout=layout, resize=resize, **values), out)
    report.raise_if_blocked()
    signature = report.facts.signature
    shape = {"NCHW": (channels, 8, 10), "NHWC": (8, 10, channels)}[layout]
    assert (signature.inputs[0].shape, signature.layout) == (("batch", *shape), layout)
    for name in SPLITS:
        split = read_split(out.path(report.artifacts[name]))
        order = np.arange(len(split))[::-1]
        taken = split.take(order)["input"]
        for row, number in zip(taken, order, strict=True):
            pixels = decode_image((root / split.files[number]).read_bytes(), channels)
            assert np.array_equal(row, preprocess(pixels, signature.preprocessing, signature.layout))
        assert np.array_equal(split.take(slice(0, 2))["input"], taken[::-1][:2])
    assert report.facts.images_per_class["train"] == {"cat": 6, "dog": 6}


def test_first_pictures_are_of_all_classes_when_later_stages_take_only_them(pictures: Write) -> None:
    splits = config(pictures("cat", "dog", "owl", count=40)).load().splits
    assert all(set(split.labels[:10]) == {0, 1, 2} for split in splits.values())


def test_folder_named_as_a_split_is_a_class_when_it_holds_pictures_itself(pictures: Write) -> None:
    assert config(pictures("bus", "train", count=20)).load().signature.labels == ("bus", "train")


def test_identity_changes_exactly_when_a_file_does(pictures: Write) -> None:
    root = pictures("cat", "dog")
    here = config(root)
    before = canonical_json(here.files())
    assert canonical_json(config(root).files()) == before
    (root / "cat" / ".hidden").write_text("not part of the data")
    assert canonical_json(here.files()) == before
    seen = [before]
    file = root / "cat" / "0003.png"
    os.utime(file, ns=(1, 1))
    seen.append(canonical_json(here.files()))
    file.rename(root / "cat" / "other.png")
    seen.append(canonical_json(here.files()))
    (root / "cat" / "other.png").write_bytes(b"shorter")
    os.utime(root / "cat" / "other.png", ns=(1, 1))
    seen.append(canonical_json(here.files()))
    (root / "cat" / "other.png").write_bytes(b"similar")  # of the same size, and with its time set back
    os.utime(root / "cat" / "other.png", ns=(1, 1))
    seen.append(canonical_json(here.files()))
    (root / "cat" / "other.png").unlink()
    seen.append(canonical_json(here.files()))
    moved = root.rename(root.with_name("moved"))  # a later stage reads the pictures where they were
    seen.append(canonical_json(config(moved).files()))
    assert len({str(state) for state in seen}) == 7


def test_identity_changes_with_a_class_folder_that_is_empty(pictures: Write) -> None:
    root = pictures("cat", "dog", count=20)
    before, labels = canonical_json(config(root).files()), config(root).load().signature.labels
    (root / "owl").mkdir()
    assert config(root).load().signature.labels != labels
    assert canonical_json(config(root).files()) != before


def test_manifest_is_the_same_when_only_the_times_of_files_changed(pictures: Write, workspace: Make) -> None:
    root, out = pictures("cat", "dog"), workspace()
    first = data(config(root), out)
    os.utime(root / "cat" / "0003.png", ns=(1, 1))
    assert data(config(root), workspace()).artifacts == first.artifacts


def test_names_that_are_no_text_are_read_and_told_all_the_same(pictures: Write, workspace: Make) -> None:
    root, out = pictures("cat", "dog"), workspace()
    odd = os.fsencode(root) + b"/cat/\xff\xfe"
    os.rename(root / "cat" / "0000.png", odd + b".png")  # noqa: PTH104 - a path of bytes
    with open(odd + b".txt", "wb") as stream:  # noqa: PTH123 - a path of bytes
        stream.write(b"not an image")
    report = data(config(root, max_skipped=1), out)
    report.raise_if_blocked()
    assert report.facts.skipped[0].file == r"cat/\xff\xfe.txt"
    assert Report[DataFacts].model_validate_json(report.model_dump_json()) == report
    splits = [read_split(out.path(report.artifacts[name])) for name in SPLITS]
    assert sum(split.take(slice(None))["input"].shape[0] for split in splits) == 20


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_pictures(tmp_path: Path) -> None:
    """100 and 1500 pictures of 64x64 make inputs of 5 and 74 MB; a batch of 32 is 1.5 MB, and held twice."""
    noise = np.random.default_rng(0).integers(0, 256, (8, 64, 64, 3), np.uint8)
    for name, count in {"few": 100, "many": 1500}.items():
        for number in range(count):
            (tmp_path / name / str(number % 2)).mkdir(parents=True, exist_ok=True)
            pixels = noise[number % 8].copy()
            pixels[0, 0] = number // 256, number % 256, 0
            Image.fromarray(pixels).save(tmp_path / name / str(number % 2) / f"{number}.bmp")

    def peak(path: Path) -> float:
        tracemalloc.start()
        dataset = config(path, image_size=(64, 64)).load()
        seen = 0
        for split in dataset.splits.values():
            for inputs in batches(split, 32):
                seen += inputs["input"].nbytes
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert seen == sum(map(len, dataset.splits.values())) * 4 * 3 * 64 * 64
        return found / 2**20

    peak(tmp_path / "few")  # what is imported on the way counts once
    few, many = peak(tmp_path / "few"), peak(tmp_path / "many")
    assert many < 8
    assert many - few < 2  # names and digests


@pytest.mark.parametrize("pattern", [r"/(\d)", r"/\d"])
def test_pictures_of_one_group_are_in_one_split(tmp_path: Path, pattern: str) -> None:
    folder = write_pictures(tmp_path, "cat", "dog", count=100)
    for file in folder.glob("*/*.png"):
        file.rename(file.with_name(file.name.removeprefix("00")))  # ten groups of ten pictures of each class
    splits = ImageFolder(path=folder, group=pattern).load().splits
    groups = {name: {Path(file).name[0] for file in split.files} for name, split in splits.items()}
    assert sum(map(len, groups.values())) == 10
    assert {name: len(split) for name, split in splits.items()}.items() >= {"calibration": 20, "test": 40}.items()


def test_groups_that_cannot_be_are_refused(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "whole", "cat", "dog")
    with pytest.raises(StageError, match=r"data.group 'patient.*' does not match 'cat/0000.png'"):
        ImageFolder(path=folder, group=r"patient(\d)").load()
    with pytest.raises(ValueError, match="no regular expression"):
        ImageFolder(path=folder, group="(")
    split = write_pictures(tmp_path / "split", "train/cat", "train/dog", "test/cat", "test/dog")
    with pytest.raises(StageError, match="the folder has its own splits"):
        ImageFolder(path=split, group=".*").load()


@pytest.mark.parametrize("place", ["elsewhere", "linked"])
def test_change_of_labels_that_lie_outside_of_the_folder_is_seen(tmp_path: Path, place: str) -> None:
    """Else an earlier run's labels would be used."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root, outside):
        folder.mkdir()
    (root / "itself").symlink_to(root)
    how = {"elsewhere": outside / "boxes.json", "linked": "voc"}[place]
    (root / "Annotations").symlink_to(outside)
    config, keys = ImageFolder(path=root, annotations=how), []
    for boxes in ("[]", "[1]"):
        (outside / "boxes.json").write_text(boxes)
        keys.append(canonical_json(config.files))
    assert keys[0] != keys[1]
