"""The user's own images, in one folder per class or with boxes; only the images of one batch are in memory."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, cast

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field, PositiveInt, field_validator, model_validator

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.kinds import kinds, removed
from gauntlet.core.signature import BoxDecoding, ChannelOrder, Interpolation, Preprocessing, Resize, Task
from gauntlet.datasets.directory_index import (
    LAYOUT,
    DirectoryState,
    directory_state,
    index_directory,
    index_images,
    printable_name,
)
from gauntlet.datasets.image_arrays import ImageTransform
from gauntlet.datasets.image_files import ImageFileSplit, ScannedImage, scan
from gauntlet.datasets.normalized_images import NormalizedImages
from gauntlet.datasets.splits import SPLIT_WORDS, SPLITS, Dataset, SplitName, skipped_check, summary
from gauntlet.datasets.splitting import Indices, SplitFractions, complete_splits

_Square = BeforeValidator(lambda size: (size, size) if isinstance(size, int) else size)
ImageSize = Annotated[tuple[PositiveInt, PositiveInt], _Square]


class ImageFolder(NormalizedImages):
    """Images in `train/<class>/` and `test/<class>/`, or in `<class>/` alone.

    Validation and calibration images may have folders of their own; otherwise they are taken out of `train` (without
    `train`, calibration images out of `test`). Hidden files are ignored, as are Thumbs.db,
    desktop.ini and __MACOSX.

    With `annotations`, images have boxes: of COCO's JSON files, one by split or one that is split here, of Pascal VOC's
    folders `JPEGImages`, `Annotations` and, unless it is split here, `ImageSets/Main`, or of YOLO's folders `images`
    and `labels`. COCO's crowds and VOC's difficult objects are neither learned nor counted. `masks` reads the class of
    each pixel: `images/a.jpg` and `masks/a.png`.
    """

    everyday: ClassVar = {"path": "photos", "image_size": [256, 320]}
    kind: Literal["image-folder"] = "image-folder"
    path: Path = Field(description="the folder, which must stay in place")
    annotations: Literal["voc", "yolo", "masks"] | Path | dict[SplitName, Path] | None = Field(
        None,
        union_mode="left_to_right",
        description="COCO's JSON file with boxes, or one by split; or voc, yolo, or masks",
    )
    images: Path | dict[SplitName, Path] = Field(
        Path(), description="the folder of the images in COCO's files, or one by split"
    )
    input_name: str = Field("input", min_length=1, description="name of the model's input")
    image_size: ImageSize = Field((224, 224), description="height and width of an input; one number for both")
    resize: Resize = Field("crop", description="stretch (default for boxes), crop the center first, or add bars")
    padding: int = Field(114, ge=0, le=255, description="level of a letterbox's bars, of 255; default: YOLO's")
    interpolation: Interpolation = Field("bilinear", description="Pillow's; all but nearest are antialiased")
    channel_order: ChannelOrder = Field(
        "RGB", description="of an input, and of mean and std; BGR as OpenCV reads files"
    )
    labels: tuple[str, ...] = Field((), description="class names in the order of the class indices; default: sorted")
    labelled: bool = Field(True, description="false: all images below the folder are one set without classes")
    task: Task | None = Field(
        None, description="what the outputs mean; default: classification where folders are classes"
    )
    threshold: float | None = Field(
        None, gt=0, lt=1, description="probability from which on the second of two classes is predicted; default: 0.5"
    )
    decode: BoxDecoding | None = Field(None, description="of a detector: how its outputs become boxes")
    max_skipped: int = Field(0, ge=0, description="unusable files that may be skipped")
    split_fractions: SplitFractions = Field(default_factory=SplitFractions, description="used for missing splits")
    group: str | None = Field(
        None, description="regular expression; images stay in one split where its first group finds the same in a path"
    )
    seed: int = Field(0, ge=0, description="determines which image is in which split")

    @model_validator(mode="before")
    @classmethod
    def _whole_images_for_boxes(cls, values: Any) -> Any:
        boxes = isinstance(values, dict) and values.get("annotations") is not None
        return {"resize": "stretch"} | values if boxes else values

    @model_validator(mode="after")
    def _truth_fits(self) -> Self:
        if self.annotations is None:
            if self.labelled and self.task not in (None, "classification", "embedding"):
                raise ValueError(f"task: {self.task}: folders tell one class for an image; set labelled: false")
        elif (self.resize == "crop" and self.annotations != "masks") or self.hog is not None:
            raise ValueError("annotations: boxes need the whole image; set resize to stretch or letterbox, without hog")
        elif self.task not in (None, "segmentation" if self.annotations == "masks" else "detection"):
            raise ValueError(f"task: {self.task}: annotations tell boxes or masks; remove task")
        if self.channel_order == "BGR" and len(self.mean) == 1:
            only = "but mean and std have one value (grayscale)"
            raise ValueError(f"channel_order: BGR, {only}; give three, or remove it")
        return self

    @field_validator("group")
    @classmethod
    def _is_a_pattern(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from error
        return pattern

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of an input, in pixels."""
        return self.image_size

    @property
    def transform(self) -> ImageTransform:
        """What turns an image into an input."""
        height, width = self.image_size
        how = Preprocessing(
            height=height,
            width=width,
            scale=1 / 255,
            mean=self.mean,
            std=self.std,
            resize=self.resize,
            padding=self.padding,
            interpolation=self.interpolation,
            channel_order=self.channel_order,
            hog=self.hog,
        )
        return ImageTransform(how=how, layout=self.layout, name=self.input_name)

    def groups(self, images: Sequence[ScannedImage]) -> list[str]:
        """Return the group of each image; none without `group`. Raise StageError for a path that does not match."""
        if self.group is None:
            return []
        matches = [re.search(self.group, image.file) for image in images]
        if None in matches:
            file, fix = images[matches.index(None)].file, "Fix: write one that matches every path"
            raise StageError(f"data.group {self.group!r} does not match {file!r}. {fix}")
        return [match.group(min(1, match.re.groups)) or "" for match in matches if match]

    def files(self) -> tuple[DirectoryState | Path, ...]:
        """Return the names, sizes and times of the user's files: reading 100 000 images would take minutes.

        The files of annotations are read.

        What changes a file but none of these is detected when it is used (`ImageFileSplit.take`).
        """
        named = self.annotations.values() if isinstance(self.annotations, dict) else (self.annotations,)
        return (directory_state(self.path), *(self.path / file for file in named if isinstance(file, Path)))

    def load(self) -> Dataset:
        """Decode every file once and split the usable ones; raise StageError without two classes or enough images."""
        if self.annotations is not None:
            return _reader_of_annotations()(self)
        index = index_directory(self.path) if self.labelled else index_images(self.path)
        labels = self._class_names(tuple(map(printable_name, index.classes))) if self.labelled else self.labels
        root, transform = self.path.resolve(), self.transform
        images, skipped = scan(root, index, len(self.mean))
        try:
            indices = self._indices(images, index.splits or ("",))
        except StageError as error:
            fix = "Fix: save them with 8 bits per channel, or as arrays in an .npz file"
            unusable = f"; unusable files ({len(skipped)}): {summary(skipped)}. {fix}" if skipped else ""
            raise StageError(f"{self.path}: {error}{unusable}") from error
        check = skipped_check(skipped, self.max_skipped)
        parts = {name: [images[i] for i in indices[name]] for name in SPLITS if name in indices}
        named = index.classes if self.labelled else ()
        places = {index.classes.index(name): labels.index(printable_name(name)) for name in named}
        splits = {
            name: file_split(
                root, part, transform, np.array([places[i.label] for i in part], np.int64) if places else None
            )
            for name, part in parts.items()
        }
        signature = transform.signature(labels if self.labelled or self.task else ())
        task = self.task or signature.task
        signature = signature.replace(task=task, decode=self.decode, threshold=self.threshold)
        return Dataset(splits, signature, (check,), tuple(skipped))

    def some_inputs(self, most: int) -> NamedArrays:
        """Return the inputs for some images, evenly spaced over the folder; none where no image can be read."""
        index = index_images(self.path)
        files = [each for each in index.files if "masks" not in Path(each[2]).parts[:-1]] or index.files
        chosen = tuple(files[:: max(1, len(files) // most)][:most])
        images, _ = scan(self.path.resolve(), replace(index, files=chosen), len(self.mean))
        return file_split(self.path.resolve(), images, self.transform).take(slice(None)) if images else {}

    def _class_names(self, folders: tuple[str, ...]) -> tuple[str, ...]:
        """Return the class names by class index."""
        if len(folders) < 2:
            raise StageError(f"{self.path}: one class folder ({folders[0]}); a classifier needs at least two")
        if {name.lower() for name in folders} <= SPLIT_WORDS:
            what = f"{' and '.join(folders)} are named as splits, not as classes"
            raise StageError(f"{self.path}: {what}; {LAYOUT}. Fix: move the files so, or set data.labelled=false")
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
        digests = [image.pixel_digest for image in images]
        groups = self.groups(images)
        return complete_splits(np.array(names), classes, self.split_fractions, self.seed, digests, groups)


def _reader_of_annotations() -> Callable[[ImageFolder], Dataset]:
    """Return what reads annotated images: what an installed package brings as `annotations.NAME`."""
    if reader := next(iter(kinds("annotations").values()), None):
        return cast("Callable[[ImageFolder], Dataset]", reader)
    raise StageError(f"data.annotations: nothing is installed that reads them. {removed('annotations.*')}")


def file_split(
    root: Path, images: list[ScannedImage], transform: ImageTransform, labels: npt.NDArray[Any] | None = None
) -> ImageFileSplit:
    """Return the split of some images below a folder, with their labels or boxes, if any."""
    return ImageFileSplit(
        root,
        tuple(image.file for image in images),
        labels,
        tuple(image.digest for image in images),
        transform,
        tuple(image.pixel_digest for image in images),
        tuple(image.fingerprint for image in images),
    )
