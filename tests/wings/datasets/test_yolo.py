"""Folders as YOLO's tools have them, and which annotations a folder has."""

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gauntlet.core.errors import StageError
from gauntlet.datasets.image_folder import ImageFolder
from wings.datasets.annotated_images import recognize_annotations
from wings.datasets.yolo import read_yolo

WIDTH, HEIGHT = 80, 40


def write(root: Path, file: str, text: str | None = "1 0.5 0.5 0.25 0.5") -> None:
    """Write an image and the text file beside it."""
    image = root / file
    image.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(zlib.crc32(file.encode())).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    Image.fromarray(pixels).save(image)
    if text is not None:
        label = root / file.replace("images", "labels").replace(".png", ".txt")
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_text(text)


@pytest.mark.parametrize("form", ["images/{split}/{name}.png", "{split}/images/{name}.png"])
def test_boxes_polygons_and_images_without_objects_are_read_in_their_splits(tmp_path: Path, form: str) -> None:
    for split in ("train", "valid"):
        for number in range(12):
            write(tmp_path, form.format(split=split, name=number))
    write(tmp_path, form.format(split="train", name="empty"), None)
    write(tmp_path, form.format(split="train", name="polygon"), "0 0.1 0.2 0.5 0.2 0.3 0.9\n")
    (tmp_path / "data.yaml").write_text("nc: 2\nnames: {1: dog, 0: cat}\n")
    found = read_yolo(tmp_path)
    assert (found.labels, found.defects) == (("cat", "dog"), [])
    assert {image.split for image in found.images} == {"train", "test"}  # without a folder `test`, it is `valid`
    boxes = {Path(image.file).stem: [(each.label, each.box) for each in image.objects] for image in found.images}
    assert boxes["0"] == [("dog", (30, 10, 50, 30))]
    assert boxes["polygon"] == [("cat", pytest.approx((8, 8, 40, 36)))]
    assert boxes["empty"] == []
    config = ImageFolder.model_validate({"path": tmp_path, "annotations": "yolo", "image_size": [20, 160]})
    dataset = config.load()
    assert (dataset.signature.task, len(dataset.splits["test"])) == ("detection", 12)
    assert dataset.splits["test"].labels[0][0].tolist() == [60, 5, 100, 15, 1, 1]


def test_every_corrupt_line_is_named(tmp_path: Path) -> None:
    good, rest = "1 0.5 0.5 0.2 0.2", " 0.5 0.5 0.2 0.2"
    labels = [f"{label}{rest}" for label in ("x", "7", "-1", "nan", "inf", "0.5")]
    wrong = ("1 0.5 0.5 0.2", "1 0.5 nan 0.2 0.2", "1 9 9 1 1", *labels)
    write(tmp_path, "images/train/a.png", "\n".join((*wrong, good)))
    write(tmp_path, "images/loose.png")
    (tmp_path / "classes.txt").write_text("cat\ndog")
    found = read_yolo(tmp_path)
    named = {defect.file for defect in found.defects}
    assert named == {*(f"labels/train/a.txt: line {number}" for number in range(1, 10)), "images/loose.png"}
    assert "allowed: 0 to 1" in next(defect.reason for defect in found.defects if "line 5" in defect.file)
    assert len(found.images[0].objects) == 1


def test_turned_photo_is_read_as_people_see_it(tmp_path: Path) -> None:
    write(tmp_path, "images/a.jpg", None)
    image, exif = Image.open(tmp_path / "images" / "a.jpg"), Image.Exif()
    exif[274] = 6
    image.save(tmp_path / "images" / "a.jpg", exif=exif)
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "a.txt").write_text("0 0.5 0.5 1 1")
    assert read_yolo(tmp_path).images[0].objects[0].box == (0, 0, HEIGHT, WIDTH)


@pytest.mark.parametrize("text", ["names", "names: 3", "names: cat dog", "names: {0: cat, 2: dog}", "[", "nc: 2"])
def test_names_that_cannot_be_read_are_refused(tmp_path: Path, text: str) -> None:
    write(tmp_path, "images/a.png")
    (tmp_path / "data.yaml").write_text(text)
    with pytest.raises(StageError, match=r"data\.yaml: no names of classes in it"):
        read_yolo(tmp_path)


def test_annotations_of_a_folder_are_recognized(tmp_path: Path) -> None:
    content = {
        "images": [{"id": 1, "file_name": "a.png", "width": WIDTH, "height": HEIGHT}],
        "annotations": [],
        "categories": [{"id": 1, "name": "cat"}],
    }
    for name in ("val2017", "train2017"):
        write(tmp_path / "coco", f"{name}/a.png", None)
        path = tmp_path / "coco" / "annotations" / f"instances_{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content | {"images": [{"id": 1, "file_name": "a.png"}]}))
    found, labels = recognize_annotations(tmp_path / "coco")
    files = {split: Path(f"annotations/instances_{n}2017.json") for split, n in (("train", "train"), ("test", "val"))}
    assert (found["annotations"], labels) == (files, ("cat",))
    write(tmp_path / "one", "pictures/a.png", None)
    (tmp_path / "one" / "boxes.json").write_text(json.dumps(content))
    (tmp_path / "one" / "other.json").write_text("{}")
    found, _ = recognize_annotations(tmp_path / "one")
    assert found == {"annotations": Path("boxes.json"), "images": Path("pictures")}
    write(tmp_path / "yolo", "train/images/a.png")
    assert recognize_annotations(tmp_path / "yolo") == ({"annotations": "yolo"}, ("0", "1"))
    write(tmp_path / "plain", "a.png", None)
    assert recognize_annotations(tmp_path / "plain") == ({}, ())
