"""Images in files, with boxes in annotations: what the readers of COCO and Pascal VOC share."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gauntlet.core.box_decoding import BoxDecoding
from gauntlet.core.errors import StageError
from gauntlet.datasets.directory_index import DirectoryIndex, DirectoryState, directory_state
from gauntlet.datasets.image_arrays import ImageTransform
from gauntlet.datasets.image_files import ImageFileSplit
from gauntlet.datasets.image_scan import ScannedImage, scan
from gauntlet.datasets.prepared_images import ImageSize, PreparedImages
from gauntlet.datasets.splits import SPLITS, Dataset, SkippedFile, skipped_check, summary
from gauntlet.datasets.splitting import SplitFractions, complete_splits
from gauntlet.datasets.truth import padded_boxes
from gauntlet.images.preprocessing import source_region

TOLERANCE = 1.0
"""Pixels that a box may reach beyond its image; it is cut there."""


@dataclass(frozen=True)
class AnnotatedObject:
    """One box in pixels of its image, the place of its annotation in a file, and whether it counts."""

    place: str
    label: str
    box: tuple[float, float, float, float]
    counts: bool = True


@dataclass
class AnnotatedImage:
    """One image by its path below the dataset's folder, its split (`""`: to be split here), and its objects.

    `size` is the height and width that the annotations declare.
    """

    file: str
    split: str
    place: str
    size: tuple[int, int] | None = None
    objects: list[AnnotatedObject] = field(default_factory=list)


@dataclass
class Annotations:
    """What the annotation files of a dataset say; `defects` are the parts that cannot be used, and why."""

    images: list[AnnotatedImage] = field(default_factory=list)
    labels: tuple[str, ...] = ()
    defects: list[SkippedFile] = field(default_factory=list)

    def reject(self, place: str, what: str, value: object, allowed: str, fix: str) -> None:
        """Add a defect: what is wrong with which value, what is allowed, and how to repair it."""
        shown = repr(value)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        self.defects.append(SkippedFile(file=place, reason=f"{what} is {shown}; allowed: {allowed}. Fix: {fix}"))


class AnnotatedImages(PreparedImages, ABC):
    """Settings of both datasets. Boxes are moved into the pixels of the input, as the images are resized."""

    kind: str
    path: Path = Field(description="the folder; it must stay in place, because training reads it again")
    image_size: ImageSize = Field((320, 320), description="height and width of an input; one number for both")
    resize: Literal["stretch", "letterbox"] = Field(
        "stretch", description="the whole image, or the whole image in its own aspect ratio between two bars"
    )
    labels: tuple[str, ...] = Field(
        (), description="class names in the order of the class indices; default: the data's"
    )
    decode: BoxDecoding | None = Field(None, description="of a model trained elsewhere: how its outputs become boxes")
    max_skipped: int = Field(
        0, ge=0, description="unusable annotations and images that may be left out; the report names each"
    )
    split_fractions: SplitFractions = Field(default_factory=SplitFractions, description="used for missing splits")
    seed: int = Field(0, ge=0, description="determines which image is in which split")

    def files(self) -> tuple[DirectoryState]:
        """Return the names, sizes and times of the user's files."""
        return (directory_state(self.path),)

    @abstractmethod
    def read_annotations(self) -> Annotations:
        """Read all annotation files; raise StageError where one is missing or not of the format at all."""

    def load(self) -> Dataset:
        """Read the annotations, decode every image once, and split them; raise StageError if too few are usable."""
        if not self.path.is_dir():
            raise StageError(f"{self.path}: no such folder. Fix: set data.path to the folder of the dataset")
        found = self.read_annotations()
        labels = self.labels or found.labels
        index = DirectoryIndex((), ("",), tuple((image.split, "", image.file) for image in found.images), ())
        scanned, unusable = scan(self.path.resolve(), index, len(self.mean))
        found.defects += unusable
        annotated = {image.file: image for image in found.images}
        rows = {file.file: self._rows(annotated[file.file], file, labels, found) for file in scanned}
        scanned = [file for file in scanned if rows[file.file] is not None]
        check = skipped_check(found.defects, self.max_skipped, "annotations and images")
        if not scanned:
            raise StageError(f"{self.path}: no usable image; {summary(found.defects) or 'no image is annotated'}")
        indices = complete_splits(np.array([image.split for image in scanned]), None, self.split_fractions, self.seed)
        if "test" not in indices:
            raise StageError(f"{self.path}: no image is in the split 'test'. Fix: name one for it, or name no splits")
        transform = self.transform
        parts = {name: [scanned[i] for i in indices[name]] for name in SPLITS if name in indices}
        splits = {name: _split(self.path.resolve(), part, rows, transform) for name, part in parts.items()}
        signature = transform.signature(labels).replace(task="detection", decode=self.decode)
        return Dataset(splits, signature, (check,), tuple(found.defects))

    def _rows(
        self, image: AnnotatedImage, file: ScannedImage, labels: Sequence[str], found: Annotations
    ) -> npt.NDArray[np.float32] | None:
        """Return an image's usable objects in pixels of the input, shape (k, 6); reject the others, or the image."""
        actual = (file.height, file.width)
        if image.size is not None and image.size != actual:
            allowed = f"{list(actual)}, as the file {image.file} has (rotated as its EXIF data asks)"
            fix = "correct the size, or the boxes if they belong to another size"
            found.reject(image.place, "size (height, width)", list(image.size), allowed, fix)
            return None
        region = source_region(*actual, self.transform.how)
        across, down = self.image_size[1] / region[2], self.image_size[0] / region[3]
        rows = []
        for each in image.objects:
            if _is_usable(each, labels, actual, found):
                left, right = ((min(max(x, 0.0), file.width) - region[0]) * across for x in each.box[::2])
                top, bottom = ((min(max(y, 0.0), file.height) - region[1]) * down for y in each.box[1::2])
                rows.append((left, top, right, bottom, labels.index(each.label), float(each.counts)))
        return np.array(rows, np.float32).reshape(-1, 6)


def _is_usable(each: AnnotatedObject, labels: Sequence[str], size: tuple[int, int], found: Annotations) -> bool:
    height, width = size
    left, top, right, bottom = each.box
    if each.label not in labels:
        known = ", ".join(labels[:10]) + (", ..." if len(labels) > 10 else "")
        found.reject(each.place, "class", each.label, known, "correct it, or add it to data.labels")
    elif not all(map(math.isfinite, each.box)) or right <= left or bottom <= top:
        allowed = "finite numbers, left < right and top < bottom"
        found.reject(each.place, "box (left, top, right, bottom)", [*each.box], allowed, "correct or remove it")
    elif min(left, top) < -TOLERANCE or right > width + TOLERANCE or bottom > height + TOLERANCE:
        allowed = f"0 to {width} across and 0 to {height} down, the image's size"
        found.reject(each.place, "box (left, top, right, bottom)", [*each.box], allowed, "correct or remove it")
    else:
        return True
    return False


def _split(
    root: Path,
    images: Iterable[ScannedImage],
    rows: dict[str, npt.NDArray[np.float32] | None],
    transform: ImageTransform,
) -> ImageFileSplit:
    part = list(images)
    return ImageFileSplit(
        root,
        tuple(image.file for image in part),
        padded_boxes([found for image in part if (found := rows[image.file]) is not None]),
        tuple(image.digest for image in part),
        transform,
        tuple(image.pixel_digest for image in part),
    )
