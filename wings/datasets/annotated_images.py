"""Annotated images: read, and their boxes in the pixels of a model's input."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gauntlet.core.errors import ConfigError, StageError
from gauntlet.datasets.directory_index import DirectoryIndex
from gauntlet.datasets.image_arrays import ImageTransform
from gauntlet.datasets.image_files import ScannedImage, scan
from gauntlet.datasets.image_folder import ImageFolder, file_split
from gauntlet.datasets.splits import SPLITS, Dataset, skipped_check, summary
from gauntlet.datasets.splitting import complete_splits
from gauntlet.images.preprocessing import source_region
from gauntlet.problems.output_evidence import InferredProblem
from wings.datasets.annotations import AnnotatedImage, AnnotatedObject, Annotations, padded_boxes, with_truth
from wings.datasets.coco import read_coco, recognize_coco
from wings.datasets.masks import MASKS, load_masked
from wings.datasets.voc import read_voc
from wings.datasets.yolo import read_yolo

READERS: dict[str, Callable[[Path], Annotations]] = {"voc": read_voc, "yolo": read_yolo}
TOLERANCE = 1.0
"""Pixels that a box may reach beyond its image; it is cut there."""


@dataclass(frozen=True)
class BoxedImages:
    """Images whose boxes are read; they are moved into the pixels of the input as `transform` resizes the images."""

    root: Path
    annotations: Annotations
    labels: Sequence[str]
    transform: ImageTransform

    def scan(self) -> tuple[list[ScannedImage], list[npt.NDArray[np.float32]]]:
        """Decode every image once; return the usable ones with their boxes, each of shape (k, 6).

        What cannot be used is added to the defects of the annotations.
        """
        images = self.annotations.images
        index = DirectoryIndex((), ("",), tuple((image.split, "", image.file) for image in images), ())
        scanned, unusable = scan(self.root, index, len(self.transform.how.mean))
        self.annotations.defects += unusable
        annotated = {image.file: image for image in images}
        rows = [self._rows(annotated[file.file], file) for file in scanned]
        kept = [(file, boxes) for file, boxes in zip(scanned, rows, strict=True) if boxes is not None]
        return [file for file, _ in kept], [boxes for _, boxes in kept]

    def _rows(self, image: AnnotatedImage, file: ScannedImage) -> npt.NDArray[np.float32] | None:
        """Return an image's usable objects in pixels of the input, shape (k, 6); reject the others, or the image."""
        actual, how = (file.height, file.width), self.transform.how
        if image.size is not None and image.size != actual:
            allowed = f"{list(actual)}, as the file {image.file} has (rotated as its EXIF data asks)"
            fix = "correct the size, or the boxes if they belong to another size"
            self.annotations.reject(image.place, "size (height, width)", list(image.size), allowed, fix)
            return None
        region = source_region(*actual, how)
        across, down = how.width / region[2], how.height / region[3]
        rows = []
        for each in image.objects:
            if _is_usable(each, self.labels, actual, self.annotations):
                left, right = ((min(max(x, 0.0), file.width) - region[0]) * across for x in each.box[::2])
                top, bottom = ((min(max(y, 0.0), file.height) - region[1]) * down for y in each.box[1::2])
                rows.append((left, top, right, bottom, self.labels.index(each.label), float(each.counts)))
        return np.array(rows, np.float32).reshape(-1, 6)


def _is_usable(each: AnnotatedObject, labels: Sequence[str], size: tuple[int, int], annotations: Annotations) -> bool:
    height, width = size
    left, top, right, bottom = each.box
    if each.label not in labels:
        known = ", ".join(labels[:10]) + (", ..." if len(labels) > 10 else "")
        annotations.reject(each.place, "class", each.label, known, "correct it, or add it to data.labels")
    elif not all(map(math.isfinite, each.box)) or right <= left or bottom <= top:
        allowed = "finite numbers, left < right and top < bottom"
        annotations.reject(each.place, "box (left, top, right, bottom)", [*each.box], allowed, "correct or remove it")
    elif min(left, top) < -TOLERANCE or right > width + TOLERANCE or bottom > height + TOLERANCE:
        allowed = f"0 to {width} across and 0 to {height} down, the image's size"
        annotations.reject(each.place, "box (left, top, right, bottom)", [*each.box], allowed, "correct or remove it")
    else:
        return True
    return False


def add_boxes(part: dict[str, Any], problem: InferredProblem, named: tuple[str, ...]) -> str:
    """Let a folder's boxes, if it has any, judge a detector; change the part `data`, and return what was found.

    `named` are the classes that the user names.

    Raises:
        ConfigError: where the folder has annotations that cannot be read, or a class that the user does not name.
    """
    try:
        annotation, names = recognize_annotations(Path(part["path"]))
    except StageError as error:
        raise ConfigError(f"--data {error}") from error
    return with_truth(part, problem, named, annotation, names, "boxes")


def recognize_annotations(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the settings that read the boxes in a folder, and the names of the classes; none where it has no boxes.

    Raises:
        StageError: where the annotations cannot be read.
    """
    annotation: dict[str, Any] = {}
    if (path / "Annotations").is_dir() and (path / "JPEGImages").is_dir():
        annotation = {"annotations": "voc"}
    elif any(folder.is_dir() for level in ("", "*/") for folder in path.glob(f"{level}labels")):
        annotation = {"annotations": "yolo"}
    else:
        places = ("*.json", "annotations/*.json", "*/_annotations.coco.json")  # the last as Roboflow writes them
        files = sorted(file for place in places for file in path.glob(place))
        annotation = recognize_coco(path, files)
    return annotation, _read(path, **annotation).labels if annotation else ()


def _read(path: Path, annotations: Any, images: Any = Path()) -> Annotations:
    return READERS[annotations](path) if isinstance(annotations, str) else read_coco(path, annotations, images)


def load_annotated(folder: ImageFolder) -> Dataset:
    """Read the annotations, decode every image once, and split the usable ones."""
    where = folder.annotations
    assert where is not None
    if where == MASKS:
        return load_masked(folder)
    if not folder.path.is_dir():
        raise StageError(f"{folder.path}: no such folder. Fix: set data.path to the folder of the dataset")
    annotations = _read(folder.path, where, folder.images)
    labels, root, transform = folder.labels or annotations.labels, folder.path.resolve(), folder.transform
    images, boxes = BoxedImages(root, annotations, labels, transform).scan()
    check = skipped_check(annotations.defects, folder.max_skipped, "annotations and images")
    if not images:
        raise StageError(f"{folder.path}: no usable image; {summary(annotations.defects) or 'no image is annotated'}")
    names, digests = np.array([image.split for image in images]), [image.pixel_digest for image in images]
    indices = complete_splits(names, None, folder.split_fractions, folder.seed, digests, folder.groups(images))
    if "test" not in indices:
        raise StageError(f"{folder.path}: no image is in the split 'test'. Fix: name one for it, or name no splits")
    splits = {
        name: file_split(root, [images[i] for i in chosen], transform, padded_boxes([boxes[i] for i in chosen]))
        for name, chosen in ((name, indices[name]) for name in SPLITS if name in indices)
    }
    signature = transform.signature(labels).replace(task="detection", decode=folder.decode)
    return Dataset(splits, signature, (check,), tuple(annotations.defects))
