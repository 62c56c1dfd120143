"""COCO and Pascal VOC folders: boxes arrive in the pixels of the input, and every corrupt annotation is named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from gauntlet.core.errors import StageError
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.image_folder import ImageFolder
from gauntlet.datasets.splits import require_labels
from tasks.data import data
from wings.datasets.coco import recognize_coco

WIDTH, HEIGHT, IMAGES = 80, 40, 12
Written = Callable[..., ImageFolder]
Change = Callable[[dict[str, Any]], None]


def write_images(folder: Path) -> list[str]:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(len(str(folder.name)))
    names = [f"{index}.png" for index in range(IMAGES)]
    for name in names:
        Image.fromarray(rng.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)).save(folder / name)
    return names


def coco_content(names: list[str]) -> dict[str, Any]:
    """Return annotations with one dog in each image, in 1.png also a cat, and in 2.png a crowd of cats."""
    dogs = [
        {"id": i, "image_id": i, "category_id": 3, "bbox": [10, 5, 20, 10], "iscrowd": 0} for i in range(len(names))
    ]
    cats = [
        {"id": 100, "image_id": 1, "category_id": 1, "bbox": [0, 0, 80, 40]},
        {"id": 101, "image_id": 2, "category_id": 1, "bbox": [40, 20, 40, 20], "iscrowd": 1},
    ]
    return {
        "images": [{"id": i, "file_name": n, "width": WIDTH, "height": HEIGHT} for i, n in enumerate(names)],
        "annotations": [*dogs, *cats],
        "categories": [{"id": 3, "name": "dog"}, {"id": 1, "name": "cat"}],
    }


@pytest.fixture
def coco(tmp_path: Path) -> Written:
    """Return a function that writes a COCO folder, changed as asked, and returns its configuration."""

    def write(change: Change | None = None, **settings: Any) -> ImageFolder:
        content = coco_content(write_images(tmp_path / "coco" / "images"))
        if change:
            change(content)
        (tmp_path / "coco" / "all.json").write_text(json.dumps(content))
        given = {"path": tmp_path / "coco", "annotations": "all.json", "images": "images", "image_size": [20, 160]}
        return ImageFolder.model_validate(given | settings)

    return write


XML = (
    "<annotation><filename>{name}</filename><size><width>80</width><height>40</height><depth>3</depth></size>"
    "<object><name>dog</name><bndbox><xmin>11</xmin><ymin>6</ymin><xmax>30</xmax><ymax>15</ymax></bndbox></object>"
    "<object><name>cat</name><difficult>1</difficult><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>80</xmax>"
    "<ymax>40</ymax></bndbox></object></annotation>"
)


@pytest.fixture
def voc(tmp_path: Path) -> Written:
    """Return a function that writes a VOC folder with `sets`, replaces a text in 0.xml, and returns its settings."""

    def write(old: str = "", new: str = "", sets: dict[str, list[int]] | None = None, **settings: Any) -> ImageFolder:
        root = tmp_path / "voc"
        names = write_images(root / "JPEGImages")
        (root / "Annotations").mkdir()
        for name in names:
            (root / "Annotations" / name).with_suffix(".xml").write_text(XML.format(name=name))
        first = root / "Annotations" / "0.xml"
        assert old in first.read_text()
        first.write_text(first.read_text().replace(old, new) if old else first.read_text())
        for which, members in (sets or {}).items():
            (root / "ImageSets" / "Main").mkdir(parents=True, exist_ok=True)
            (root / "ImageSets" / "Main" / f"{which}.txt").write_text("\n".join(map(str, members)))
        return ImageFolder.model_validate({"path": root, "annotations": "voc", "image_size": [20, 160]} | settings)

    return write


def objects_of(config: ImageFolder) -> set[tuple[float, ...]]:
    splits = config.load().splits.values()
    return {tuple(row) for split in splits for rows in split.labels for row in rows.tolist() if row[4] >= 0}  # type: ignore[union-attr]


def test_boxes_of_coco_are_stretched_with_their_images(coco: Written) -> None:
    config = coco()
    dataset = config.load()
    assert dataset.signature.labels == ("cat", "dog")
    assert dataset.signature.task == "detection"
    assert objects_of(config) == {(20, 2.5, 60, 7.5, 1, 1), (0, 0, 160, 20, 0, 1), (80, 10, 160, 20, 0, 0)}
    assert sum(map(len, dataset.splits.values())) == IMAGES


def test_byte_order_mark_and_texts_for_no_crowd_are_read(coco: Written) -> None:
    config = coco(lambda content: [each.update(iscrowd="0") for each in content["annotations"][:IMAGES]])
    file = config.path / "all.json"
    file.write_text(file.read_text(), encoding="utf-8-sig")
    assert objects_of(config) == {(20, 2.5, 60, 7.5, 1, 1), (0, 0, 160, 20, 0, 1), (80, 10, 160, 20, 0, 0)}


def test_boxes_of_coco_are_moved_between_the_bars_of_a_letterbox(coco: Written) -> None:
    """Images of 80x40 pixels become 40x20, with bars of 60 pixels on both sides."""
    config = coco(resize="letterbox", padding=0, mean=[0, 0, 0], std=[1, 1, 1], channel_order="BGR")
    assert objects_of(config) == {(65, 2.5, 75, 7.5, 1, 1), (60, 0, 100, 20, 0, 1), (80, 10, 100, 20, 0, 0)}
    dataset = config.load()
    how = dataset.signature.preprocessing
    assert (how.resize, how.channel_order) == ("letterbox", "BGR")
    image = dataset.splits["test"].take(slice(0, 1))["input"][0]
    assert not image[:, :, :60].any()
    assert not image[:, :, 100:].any()
    assert image[:, :, 60:100].min() > 0


@pytest.mark.parametrize("setting", [{"resize": "crop"}, {"hog": {}}])
def test_part_of_an_image_is_refused_for_boxes(coco: Written, setting: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="set resize to stretch or letterbox"):
        coco(**setting)


def test_channel_order_of_grayscale_images_is_refused(coco: Written) -> None:
    with pytest.raises(ValidationError, match="channel_order: BGR, but mean and std have one value"):
        coco(mean=[0.5], std=[0.5], channel_order="BGR")


def test_boxes_of_voc_begin_with_pixel_one_and_difficult_ones_do_not_count(voc: Written) -> None:
    config = voc()
    assert config.load().signature.labels == ("cat", "dog")
    assert objects_of(config) == {(20, 2.5, 60, 7.5, 1, 1), (0, 0, 160, 20, 0, 0)}


def test_data_stage_stores_files_and_boxes(coco: Written, workspace: Callable[..., Workspace]) -> None:
    space, config = workspace(), coco()
    report = data(config, space)
    report.raise_if_blocked()
    stored, loaded = read_split(space.path(report.artifacts["train"])), config.load().splits["train"]
    assert np.array_equal(stored.labels, loaded.labels)
    assert stored.take(slice(0, 1))["input"].shape == (1, 3, 20, 160)
    assert report.facts.images_per_class["train"]["dog"] == len(loaded)
    with pytest.raises(StageError, match="needs the class of each sample"):
        require_labels(stored)


def test_sets_of_voc_are_the_splits(voc: Written) -> None:
    splits = voc(sets={"train": [0, 1, 2, 3, 4, 5, 6], "val": [7, 8], "test": [9, 10, 11]}).load().splits
    wanted = {"train": 6, "validation": 2, "calibration": 1, "test": 3}
    assert {name: len(split) for name, split in splits.items()} == wanted


def test_validation_set_of_voc_is_the_test_split_where_there_is_no_other(voc: Written) -> None:
    splits = voc(sets={"train": list(range(9)), "val": [9, 10, 11]}).load().splits
    assert len(splits["test"]) == 3


def test_files_of_coco_are_the_splits(tmp_path: Path) -> None:
    for split in ("train", "test"):
        content = coco_content(write_images(tmp_path / split / split))
        (tmp_path / f"{split}.json").write_text(json.dumps(content))
    config = ImageFolder.model_validate(
        {
            "path": tmp_path,
            "annotations": {"train": "train.json", "test": "test.json"},
            "images": {"train": "train/train", "test": "test/test"},
        }
    )
    splits = config.load().splits
    assert len(splits["test"]) == IMAGES
    assert set(splits) == {"train", "validation", "calibration", "test"}


def test_split_of_a_coco_file_is_a_whole_word_of_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "latest"
    for name in ("contest_objects.json", "intervals_train2017.json", "VALID.json"):
        place = folder / Path(name).stem
        (folder / name).write_text(json.dumps(coco_content([f"{place.name}/{n}" for n in write_images(place)])))
    files = sorted(folder.glob("*.json"))
    known = recognize_coco(folder, files)
    assert known["annotations"] == {"train": Path("intervals_train2017.json"), "test": Path("VALID.json")}
    [unsplit] = (file for file in files if file.name.startswith("contest"))
    assert recognize_coco(folder, [unsplit])["annotations"] == Path("contest_objects.json")


def annotation(key: str, value: object, index: int = 0) -> Change:
    def change(content: dict[str, Any]) -> None:
        content["annotations"][index][key] = value

    return change


def image(key: str, value: object) -> Change:
    def change(content: dict[str, Any]) -> None:
        content["images"][0][key] = value

    return change


@pytest.mark.parametrize(
    ("change", "place", "reason"),
    [
        (annotation("bbox", [10, 5, 0, 10]), "all.json: annotation 0", "left < right and top < bottom"),
        (annotation("bbox", [70, 5, 20, 10]), "all.json: annotation 0", "0 to 80 across and 0 to 40 down"),
        (annotation("bbox", [1, 2, 3]), "all.json: annotation 0", r"bbox is [1, 2, 3]; allowed: [left, top, width"),
        (annotation("bbox", [1, 2, 3, None]), "all.json: annotation 0", "[left, top, width, height]"),
        (annotation("bbox", [1, 2, 3, float("nan")]), "all.json: annotation 0", "finite numbers"),
        (annotation("category_id", 7), "all.json: annotation 0", "category_id is 7; allowed: 1, 3"),
        (annotation("image_id", 99), "all.json: annotation 0", "image_id is 99; allowed: an id of `images`"),
        (annotation("image_id", [1]), "all.json: annotations[0]", "image_id is [1]; allowed: a whole number"),
        (image("width", 81), "all.json: image 0", "size (height, width) is [40, 81]; allowed: [40, 80]"),
        (image("file_name", "../0.png"), "all.json: image 0", "a path below data.images"),
        (image("file_name", "1.png"), "all.json: image 1", "one entry a file"),
        (image("id", 1), "all.json: image 1", "one image an id"),
        (image("file_name", "none.png"), "images/none.png", "not a file"),
        (lambda c: c["annotations"][0].pop("bbox"), "all.json: annotations[0]", "bbox is None; allowed: an object"),
    ],
)
def test_corrupt_annotation_of_coco_stops_the_run_and_is_named(
    coco: Written, workspace: Callable[..., Workspace], change: Change, place: str, reason: str
) -> None:
    report = data(coco(change), workspace())
    failed = {check.name: check for check in report.failures}
    assert "data.max_skipped" in failed
    first = report.facts.skipped[0]
    assert (first.file.startswith(place), reason in first.reason or "broken" in first.reason) == (True, True), first
    assert first.file in failed["data.max_skipped"].detail


def test_corrupt_annotations_are_left_out_when_allowed(coco: Written) -> None:
    config = coco(annotation("bbox", [70, 5, 20, 10], index=12), max_skipped=1)
    assert all(check.passed for check in config.load().checks)
    assert objects_of(config) == {(20, 2.5, 60, 7.5, 1, 1), (80, 10, 160, 20, 0, 0)}


@pytest.mark.parametrize(
    ("old", "new", "place", "reason"),
    [
        ("</annotation>", "", "Annotations/0.xml", "well-formed XML"),
        ("<annotation>", '<!DOCTYPE a [<!ENTITY x "y">]><annotation>', "Annotations/0.xml", "plain elements"),
        ("<xmin>11</xmin>", "<xmin>left</xmin>", "Annotations/0.xml: object 1", "numbers for xmin, ymin, xmax, ymax"),
        ("<xmin>11</xmin>", "<xmin>40</xmin>", "Annotations/0.xml: object 1", "left < right"),
        ("<xmax>30</xmax>", "<xmax>99</xmax>", "Annotations/0.xml: object 1", "0 to 80 across"),
        ("<name>dog</name>", "", "Annotations/0.xml: object 1", "the object's class"),
        ("<filename>0.png</filename>", "", "Annotations/0.xml", "the name of a file in JPEGImages"),
        ("<width>80</width>", "<width>40</width>", "Annotations/0.xml", "allowed: [40, 80]"),
        ("0.png", "missing.png", "JPEGImages/missing.png", "not a file"),
    ],
)
def test_corrupt_annotation_of_voc_stops_the_run_and_is_named(
    voc: Written, workspace: Callable[..., Workspace], old: str, new: str, place: str, reason: str
) -> None:
    report = data(voc(old, new), workspace())
    assert "data.max_skipped" in {check.name for check in report.failures}
    first = report.facts.skipped[0]
    assert (first.file, reason in first.reason or "broken" in first.reason) == (place, True), first


def test_class_that_the_labels_do_not_name_is_refused(voc: Written) -> None:
    defects = voc(labels=["dog"]).load().skipped
    assert len(defects) == IMAGES
    assert "class is 'cat'; allowed: dog" in defects[0].reason


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "no list 'images'"),
        ('{"images": [], "annotations": 1}', "no list 'annotations'"),
        (
            '{"images": [], "annotations": [], "categories": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}',
            r"all\.json: two categories have the id 1\. Fix",
        ),
    ],
)
def test_file_that_is_not_cocos_is_refused(coco: Written, content: str, message: str) -> None:
    config = coco()
    (config.path / "all.json").write_text(content)
    with pytest.raises(StageError, match=message):
        config.load()


def test_missing_folder_and_file_are_named(coco: Written, tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"no such folder. Fix: set data.path"):
        ImageFolder(path=tmp_path / "none", annotations="all.json").load()
    config = coco(annotations="other.json")
    with pytest.raises(StageError, match=r"other.json: No such file or directory. Fix: set data.annotations"):
        config.load()
    with pytest.raises(StageError, match="expected JPEGImages, Annotations and ImageSets"):
        ImageFolder(path=config.path, annotations="voc").load()


def test_image_in_two_sets_of_voc_is_refused(voc: Written) -> None:
    with pytest.raises(StageError, match="'3' is in train too"):
        voc(sets={"train": [1, 2, 3], "test": [3, 4]}).load()
