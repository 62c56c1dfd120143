"""The format of YOLO's tools: a text file for each image, a line for each object, in shares of the image."""

from collections.abc import Iterable
from pathlib import Path, PurePath

import yaml
from PIL import Image, UnidentifiedImageError

from gauntlet.core.errors import StageError
from gauntlet.datasets.directory_index import index_images
from wings.datasets.annotations import SPLIT_OF_WORD, AnnotatedImage, AnnotatedObject, Annotations

IMAGES, LABELS = "images", "labels"
ORIENTATION, SIDEWAYS = 274, (5, 6, 7, 8)
"""EXIF's tag, and its values for an image that is stored turned by a quarter."""
FORMAT = "class, center x, center y, width and height, or class and the corners of a polygon, all from 0 to 1"


def read_yolo(path: Path) -> Annotations:
    """Read the file in `labels` for each image in `images`: `images/a.jpg` and `labels/a.txt`.

    A split is a folder below these, or above. An image without a file shows nothing. The names of the classes are in
    `data.yaml` or `classes.txt`, else they are numbers.

    Raises:
        StageError: without any such image, or where the names cannot be read.
    """
    annotations, names = Annotations(), class_names(path)
    files = [file for _, _, file in index_images(path).files if IMAGES in PurePath(file).parts[:-1]]
    for file, split in splits_of(files).items():
        if split is None:
            annotations.reject(
                file, "folder", str(PurePath(file).parent), ", ".join(SPLIT_OF_WORD), "move it into a split"
            )
        else:
            annotations.images.append(_image(path, PurePath(file), split, names, annotations))
    if not annotations.images:
        raise StageError(f"{path}: no image below a folder '{IMAGES}'; expected {IMAGES}/a.jpg and {LABELS}/a.txt")
    used = {int(each.label) for image in annotations.images for each in image.objects} if not names else set()
    annotations.labels = names or tuple(map(str, range(max(used, default=0) + 1)))
    return annotations


def splits_of(files: Iterable[str]) -> dict[str, str | None]:
    """Return the split of each file, by its folders: `""` where none is in a split, None for one outside of them.

    Folders may end in a year. Without `test`, `val` is the test split.
    """
    splits: dict[str, str | None] = {}
    for file in files:
        words = [part.rstrip("0123456789").lower() for part in PurePath(file).parts[:-1]]
        splits[file] = next((SPLIT_OF_WORD[word] for word in words if word in SPLIT_OF_WORD), None)
    if not any(splits.values()):
        return dict.fromkeys(splits, "")
    tested = "validation" if "test" not in splits.values() else "test"
    return {file: "test" if split == tested else split for file, split in splits.items()}


def class_names(path: Path) -> tuple[str, ...]:
    """Return the names of the classes in their order; none where no file has them."""
    for file in (path / "data.yaml", path / "dataset.yaml"):
        if file.is_file():
            return _names_in(file)
    listed = path / "classes.txt"
    return (
        tuple(listed.read_text(encoding="utf-8-sig", errors="replace").rstrip().splitlines())
        if listed.is_file()
        else ()
    )


def _names_in(file: Path) -> tuple[str, ...]:
    try:
        names = yaml.safe_load(file.read_text(encoding="utf-8-sig"))["names"]
        ordered = [names[index] for index in range(len(names))] if isinstance(names, dict) else names
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
        ordered = None
    if not isinstance(ordered, list):
        fix = "Fix: write names: [cat, dog], in the order of the classes"
        raise StageError(f"{file}: no names of classes in it. {fix}")
    return tuple(map(str, ordered))


def _size(file: Path) -> tuple[int, int]:
    """Return height and width as people see it; 0 for a file that is no image, which the scan names."""
    try:
        with Image.open(file) as image:
            width, height = image.size
            return (width, height) if image.getexif().get(ORIENTATION) in SIDEWAYS else (height, width)
    except (OSError, UnidentifiedImageError, ValueError):
        return 0, 0


def _image(path: Path, file: PurePath, split: str, names: tuple[str, ...], annotations: Annotations) -> AnnotatedImage:
    place = len(file.parts) - 2 - file.parts[-2::-1].index(IMAGES)
    text = PurePath(*file.parts[:place], LABELS, *file.parts[place + 1 :]).with_suffix(".txt")
    image = AnnotatedImage(str(file), split, str(text))
    try:
        lines = (path / text).read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        return image
    except (OSError, UnicodeDecodeError) as error:
        annotations.reject(str(text), "content", type(error).__name__, "lines of numbers", "write it again")
        return image
    size = _size(path / file)
    for number, line in enumerate(lines, 1):
        where = f"{text}: line {number}"
        if (read := _box(line, size)) is None and line.strip():
            annotations.reject(where, "object", line, FORMAT, "correct or remove it")
        elif read is not None and names and read[0] >= len(names):
            annotations.reject(where, "class", read[0], f"0 to {len(names) - 1}", "correct it, or add its name")
        elif read is not None:
            label, box = read
            image.objects.append(AnnotatedObject(where, names[label] if names else str(label), box))
    return image


def _box(line: str, size: tuple[int, int]) -> tuple[int, tuple[float, float, float, float]] | None:
    """Return the class and the box of a line in pixels: left, top, right and bottom; None for anything else."""
    try:
        label, *values = map(float, line.split())
    except ValueError:
        return None
    height, width = size
    within = all(-0.01 <= value <= 1.01 for value in values)  # not so for NaN
    if label < 0 or not label.is_integer() or not within or len(values) < 4 or len(values) % 2:
        return None
    if len(values) == 4:
        x, y, wide, high = values
        across, down = (x - wide / 2, x + wide / 2), (y - high / 2, y + high / 2)
    else:
        across, down = ((min(part), max(part)) for part in (values[::2], values[1::2]))
    return int(label), (across[0] * width, down[0] * height, across[1] * width, down[1] * height)
