"""The user's own images: one folder per class, any image size; only the images of one batch are in memory."""

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from gauntlet.core.errors import StageError
from gauntlet.core.signature import Resize
from gauntlet.datasets.directory_index import (
    DirectoryState,
    directory_state,
    index_directory,
    index_images,
    printable_name,
)
from gauntlet.datasets.image_arrays import ImageTransform
from gauntlet.datasets.image_files import ImageFileSplit
from gauntlet.datasets.image_scan import ScannedImage, scan
from gauntlet.datasets.normalized_images import HogImages
from gauntlet.datasets.prepared_images import PreparedImages
from gauntlet.datasets.splits import SPLITS, Dataset, skipped_check, summary
from gauntlet.datasets.splitting import Indices, SplitFractions, complete_splits


class ImageFolder(PreparedImages, HogImages):
    """Images in `train/<class>/` and `test/<class>/`, or in `<class>/` alone, which are then split here.

    Validation and calibration images may have folders of their own; otherwise they are taken out of `train` (without
    `train`, calibration images out of `test`). Hidden files are ignored.
    """

    kind: Literal["image-folder"] = "image-folder"
    path: Path = Field(description="the folder; it must stay in place, because training reads it again")
    resize: Resize = Field("crop", description="use the whole image, or crop its center first, or add bars (letterbox)")
    labels: tuple[str, ...] = Field((), description="class names in the order of the class indices; default: sorted")
    labelled: bool = Field(True, description="false: folders are no classes; all images below the folder are one set")
    max_skipped: int = Field(0, ge=0, description="unusable files that may be skipped; the report names each")
    split_fractions: SplitFractions = Field(default_factory=SplitFractions, description="used for missing splits")
    seed: int = Field(0, ge=0, description="determines which image is in which split")

    def files(self) -> tuple[DirectoryState]:
        """Return the names, sizes and times of the user's files: reading 100 000 images would take minutes.

        A file that changes without a change of size or time is detected when it is used (`ImageFileSplit.take`).
        """
        return (directory_state(self.path),)

    def load(self) -> Dataset:
        """Decode every file once and split the usable ones; raise StageError without two classes or enough images."""
        index = index_directory(self.path) if self.labelled else index_images(self.path)
        labels = self._class_names(tuple(map(printable_name, index.classes))) if self.labelled else ()
        root, transform = self.path.resolve(), self.transform
        images, skipped = scan(root, index, len(self.mean))
        try:
            indices = self._indices(images, index.splits or ("",))
        except StageError as error:
            unusable = f"; unusable files ({len(skipped)}): {summary(skipped)}" if skipped else ""
            raise StageError(f"{self.path}: {error}{unusable}") from error
        check = skipped_check(skipped, self.max_skipped)
        parts = {name: [images[i] for i in indices[name]] for name in SPLITS if name in indices}
        places = {index.classes.index(name): labels.index(printable_name(name)) for name in index.classes if labels}
        splits = {name: _file_split(root, part, transform, places) for name, part in parts.items()}
        return Dataset(splits, transform.signature(labels), (check,), tuple(skipped))

    def _class_names(self, folders: tuple[str, ...]) -> tuple[str, ...]:
        """Return the class names by class index."""
        if len(folders) < 2:
            raise StageError(f"{self.path}: one class folder ({folders[0]}); a classifier needs at least two")
        unknown = [name for name in folders if self.labels and name not in self.labels]
        if unknown:
            raise StageError(
                f"{self.path}: the folder {unknown[0]!r} is none of the {len(self.labels)} data.labels. "
                "Fix: name each folder as its class"
            )
        return self.labels or folders

    def _indices(self, images: list[ScannedImage], folders: tuple[str, ...]) -> dict[str, Indices]:
        """Return the shuffled indices by split."""
        classes = np.array([image.label for image in images], np.int64)  # all the same for unlabelled images
        names = [image.split for image in images]
        empty = [name for name in folders if name not in names]
        if empty:
            raise StageError(f"no usable image in the folder {empty[0]!r}" if empty[0] else "no usable image")
        return complete_splits(np.array(names), classes, self.split_fractions, self.seed)


def _file_split(
    root: Path, images: list[ScannedImage], transform: ImageTransform, places: dict[int, int]
) -> ImageFileSplit:
    """Return the split; `places` maps the folders' numbers to class indices, and is empty without labels."""
    return ImageFileSplit(
        root,
        tuple(image.file for image in images),
        np.array([places[image.label] for image in images], np.int64) if places else None,
        tuple(image.digest for image in images),
        transform,
        tuple(image.pixel_digest for image in images),
        tuple(image.fingerprint for image in images),
    )
