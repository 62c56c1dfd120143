"""Folders of images and masks, and folders as YOLO's tools have them; unusable files are named."""

import json
import zlib
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from PIL import Image

from configs.brought_model import infer_config
from configs.loader import load
from gauntlet.core.errors import StageError
from gauntlet.datasets import read_split
from gauntlet.datasets.image_folder import ImageFolder
from wings.datasets.annotated_images import recognize_annotations
from wings.datasets.yolo import read_yolo

COLORS = np.array([(0, 0, 0), (255, 0, 0), (0, 255, 0)], np.uint8)
"""Of the classes; the segmenter below tells them apart."""
SIZE = 32


def write(root: Path, name: str, classes: np.ndarray, *, values: np.ndarray | None = None, split: str = "") -> None:
    """Write an image whose colors show the classes, shape (height, width), and the mask, which holds `values`."""
    for folder, pixels in (("images", COLORS[classes]), ("masks", classes if values is None else values)):
        path = root / split / folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)


def squares(seed: int, *, highest: int = 2) -> np.ndarray:
    rng = np.random.default_rng(seed)
    classes = np.zeros((48, 64), np.int64)
    for label in range(1, highest + 1):
        top, left = rng.integers(0, 24), rng.integers(0, 40)
        classes[top : top + 20, left : left + 24] = label
    return classes


def read(path: Path, **options: object) -> ImageFolder:
    return ImageFolder.model_validate({"path": path, "annotations": "masks", "image_size": SIZE, **options})


def segmenter(path: Path, *, classes: int = 3) -> Path:
    """Write a model whose scores are highest for the class that the color of each pixel shows."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>'
        f"g (float[n, 3, {SIZE}, {SIZE}] image) => (float[n, {classes}, {SIZE}, {SIZE}] logits)"
        "{ logits = Conv(image, weight, bias) }"
    )
    weight = np.zeros((classes, 3, 1, 1), np.float32)
    weight[1, 0], weight[2 % classes, 1] = 3, 3
    values = {"weight": weight, "bias": np.array([0, -1, -1, -9][:classes], np.float32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in values.items())
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("resize", ["stretch", "crop", "letterbox"])
def test_masks_are_resized_as_their_images(tmp_path: Path, resize: str) -> None:
    for number in range(10):
        write(tmp_path, str(number), squares(number))
    config = read(tmp_path, resize=resize, mean=[0], std=[1], interpolation="nearest")
    split = config.load().splits["test"]
    masks, levels = split.labels, split.take(slice(None))["input"][:, 0] * 255
    assert (masks.dtype, masks.shape) == (np.uint8, (len(split), SIZE, SIZE))
    assert bool((masks == 255).any()) == (resize == "letterbox")
    luma = {0: 0, 1: 76, 2: 150, 255: 114}  # of black, red and green, and of a letterbox's bars
    assert np.array_equal(levels.round(), np.vectorize(luma.get)(masks))


def test_masks_outlive_their_files(tmp_path: Path) -> None:
    for number in range(10):
        write(tmp_path / "data", str(number), squares(number))
    split = read(tmp_path / "data").load().splits["test"]
    saved = split.save(tmp_path, "test")
    for mask in (tmp_path / "data" / "masks").iterdir():
        mask.unlink()
    assert np.array_equal(read_split(saved).labels, split.labels)


def test_black_and_white_masks_show_one_class(tmp_path: Path) -> None:
    for number in range(10):
        mask = squares(number, highest=1)
        write(tmp_path, str(number), mask, values=255 * mask)
    dataset = read(tmp_path).load()
    assert dataset.signature.labels == ("0", "1")
    assert set(np.unique(dataset.splits["test"].labels)) == {0, 1}
    bars = read(tmp_path, resize="letterbox").load().splits["test"].labels[:, 0]
    assert set(np.unique(bars)) == {255}


def test_pixels_of_255_beside_classes_do_not_count(tmp_path: Path) -> None:
    for number in range(10):
        mask = squares(number)
        write(tmp_path, str(number), mask, values=np.where(mask == 1, 255, mask))
    dataset = read(tmp_path).load()
    assert dataset.signature.labels == ("0", "1", "2")
    assert set(np.unique(dataset.splits["test"].labels)) == {0, 2, 255}


def test_folders_are_splits_and_palettes_are_classes(tmp_path: Path) -> None:
    for split, first in (("train", 0), ("val", 12)):
        for number in range(first, first + 12):
            write(tmp_path, str(number), squares(number), split=split)
    for mask in tmp_path.glob("*/masks/*.png"):
        indexed = Image.open(mask).convert("P")
        indexed.putpalette(COLORS.ravel().tolist())
        indexed.save(mask)
    splits = read(tmp_path).load().splits
    assert len(splits["test"]) == 12
    assert {file.split("/")[0] for file in splits["test"].files} == {"val"}


def test_every_unusable_mask_is_named(tmp_path: Path) -> None:
    for number in range(15):
        write(tmp_path, str(number), squares(number))
    masks = tmp_path / "masks"
    (masks / "0.png").unlink()
    Image.fromarray(COLORS[squares(1)]).save(masks / "1.png")
    Image.fromarray(squares(2)[:20].astype(np.uint8)).save(masks / "2.png")
    (masks / "3.png").write_bytes(b"no image")
    Image.fromarray(squares(4).astype(np.uint16)).save(masks / "4.png")
    dataset = read(tmp_path, max_skipped=4).load()
    reasons = {skipped.file.split("/")[-1]: skipped.reason for skipped in dataset.skipped}
    assert sorted(reasons) == ["0.png", "1.png", "2.png", "3.png", "4.png"]
    assert "no mask masks/0.png" in reasons["0.png"]
    assert "in color" in reasons["1.png"]
    assert "its image has [48, 64]" in reasons["2.png"]
    assert "damaged" in reasons["3.png"]
    assert "expected a class for each pixel" in reasons["4.png"]
    assert not dataset.checks[0].passed


def test_class_without_a_name_stops_the_run(tmp_path: Path) -> None:
    for number in range(10):
        write(tmp_path, str(number), squares(number))
    with pytest.raises(StageError, match=r"masks/.*a pixel has class 2; allowed: 0 to 1"):
        read(tmp_path, labels=["a", "b"]).load()


def test_folder_without_masks_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a", squares(0))
    (tmp_path / "masks" / "a.png").unlink()
    with pytest.raises(StageError, match=r"no image with a usable mask; images/a\.png: no mask masks/a\.png"):
        read(tmp_path).load()


@pytest.mark.slow
def test_brought_segmenter_is_judged_by_the_masks_of_its_folder(tmp_path: Path) -> None:
    for number in range(20):
        write(tmp_path / "data", str(number), squares(number))
    (tmp_path / "data" / "classes.txt").write_text("ground\nred\ngreen\n")
    found = infer_config(segmenter(tmp_path / "m.onnx"), tmp_path / "data", None, {})
    assert found.notes["problem"].endswith("judged by the folder's masks, whose classes are ASSUMED to be in its order")
    assert "maps of 3 classes: as the folder's masks suggest" in found.notes["problem"]
    assert found.notes["samples"].endswith("with masks")
    (tmp_path / "found.yaml").write_text(yaml.safe_dump(found.values))
    signature = load(str(tmp_path / "found.yaml")).data.load().signature
    assert (signature.task, signature.labels) == ("segmentation", ("ground", "red", "green"))
    four = infer_config(segmenter(tmp_path / "four.onnx", classes=4), tmp_path / "data", None, {})
    assert "masks of 3 classes are left out, because the model has 4" in four.notes["problem"]


WIDTH, HEIGHT = 80, 40


def write_yolo(root: Path, file: str, text: str | None = "1 0.5 0.5 0.25 0.5") -> None:
    """Write an image and the text file beside it."""
    image = root / file
    image.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(zlib.crc32(file.encode())).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    Image.fromarray(pixels).save(image)
    if text is not None:
        label = root / file.replace("images", "labels").replace(".png", ".txt")
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_text(text)


@pytest.mark.parametrize(
    ("form", "splits"),
    [
        ("images/{split}/{name}.png", ("train", "valid")),
        ("{split}/images/{name}.png", ("train", "validation")),
        ("images/{split}/{name}.png", ("train2017", "val2017")),
        ("{split}/images/{name}.png", ("Training", "Val")),
    ],
)
def test_boxes_polygons_and_images_without_objects_are_read_in_their_splits(
    tmp_path: Path, form: str, splits: tuple[str, str]
) -> None:
    for split in splits:
        for number in range(12):
            write_yolo(tmp_path, form.format(split=split, name=number))
    write_yolo(tmp_path, form.format(split=splits[0], name="empty"), None)
    write_yolo(tmp_path, form.format(split=splits[0], name="polygon"), "0 0.1 0.2 0.5 0.2 0.3 0.9\n")
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
    write_yolo(tmp_path, "images/train/a.png", "\n".join((*wrong, good)))
    write_yolo(tmp_path, "images/loose.png")
    (tmp_path / "classes.txt").write_text("cat\ndog")
    found = read_yolo(tmp_path)
    named = {defect.file for defect in found.defects}
    assert named == {*(f"labels/train/a.txt: line {number}" for number in range(1, 10)), "images/loose.png"}
    assert "allowed: 0 to 1" in next(defect.reason for defect in found.defects if "line 5" in defect.file)
    assert len(found.images[0].objects) == 1


def test_turned_photo_is_read_as_people_see_it(tmp_path: Path) -> None:
    write_yolo(tmp_path, "images/a.jpg", None)
    image, exif = Image.open(tmp_path / "images" / "a.jpg"), Image.Exif()
    exif[274] = 6
    image.save(tmp_path / "images" / "a.jpg", exif=exif)
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "a.txt").write_text("0 0.5 0.5 1 1")
    assert read_yolo(tmp_path).images[0].objects[0].box == (0, 0, HEIGHT, WIDTH)


@pytest.mark.parametrize("text", ["names", "names: 3", "names: cat dog", "names: {0: cat, 2: dog}", "[", "nc: 2"])
def test_names_that_cannot_be_read_are_refused(tmp_path: Path, text: str) -> None:
    write_yolo(tmp_path, "images/a.png")
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
        write_yolo(tmp_path / "coco", f"{name}/a.png", None)
        path = tmp_path / "coco" / "annotations" / f"instances_{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content | {"images": [{"id": 1, "file_name": "a.png"}]}))
        people = content | {"categories": [{"id": 1, "name": "person"}]}
        path.with_name(f"person_keypoints_{name}.json").write_text(json.dumps(people))
        path.with_name(f"captions_{name}.json").write_text('{"images": [{"file_name": "a.png"}], "annotations": []}')
    found, labels = recognize_annotations(tmp_path / "coco")
    names = (("train", "train2017"), ("test", "val2017"))
    assert found["annotations"] == {split: Path(f"annotations/instances_{name}.json") for split, name in names}
    assert (found["images"], labels) == ({split: Path(name) for split, name in names}, ("cat",))
    for name in ("test", "train", "valid"):
        write_yolo(tmp_path / "roboflow", f"{name}/a.png", None)
        (tmp_path / "roboflow" / name / "_annotations.coco.json").write_text(json.dumps(content))
    found, _ = recognize_annotations(tmp_path / "roboflow")
    assert {*found["annotations"]} == {"train", "validation", "test"}
    assert found["images"] == {split: file.parent for split, file in found["annotations"].items()}
    write_yolo(tmp_path / "one", "pictures/a.png", None)
    (tmp_path / "one" / "boxes.json").write_text(json.dumps(content))
    (tmp_path / "one" / "other.json").write_text("{}")
    found, _ = recognize_annotations(tmp_path / "one")
    assert found == {"annotations": Path("boxes.json"), "images": Path("pictures")}
    write_yolo(tmp_path / "yolo", "train/images/a.png")
    assert recognize_annotations(tmp_path / "yolo") == ({"annotations": "yolo"}, ("0", "1"))
    write_yolo(tmp_path / "plain", "a.png", None)
    assert recognize_annotations(tmp_path / "plain") == ({}, ())
