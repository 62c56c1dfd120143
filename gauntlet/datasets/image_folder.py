"""The user's own pictures: a folder a class, of any size; only the pictures of one batch are ever in memory."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Check
from gauntlet.core.signature import Preprocessing
from gauntlet.datasets.directory_index import DirectoryState, directory_state, index_directory, printable_name
from gauntlet.datasets.image_arrays import ImageTransform
from gauntlet.datasets.image_files import ImageFileSplit
from gauntlet.datasets.image_scan import ImageScan
from gauntlet.datasets.splits import SPLITS, Dataset, SkippedFile
from gauntlet.datasets.splitting import SplitFractions, split_indices, stratified_sample

NAMED = 5
"""Files that a message names; the facts of the stage name all."""


def _square(size: Any) -> Any:
    return (size, size) if isinstance(size, int) else size


class ImageFolder(Frozen):
    """Pictures in `train/<class>/` and `test/<class>/`, or in `<class>/` alone, which are then split here.

    Validation and calibration pictures may have folders of their own; else they are taken out of `train` (or, for
    calibration, out of `test` where there is no `train`). Hidden files are not part of the data.
    """

    kind: Literal["image-folder"] = "image-folder"
    path: Path = Field(description="the folder; it stays where it is and is read again in training")
    image_size: Annotated[tuple[PositiveInt, PositiveInt], BeforeValidator(_square)] = Field(
        (224, 224), description="height and width of an input; one number for both"
    )
    mean: tuple[float, ...] = Field(
        (0.485, 0.456, 0.406), description="one a channel, of values from 0 to 1: three for colour, one for grey"
    )
    std: tuple[float, ...] = Field((0.229, 0.224, 0.225), description="one a channel; by default those of ImageNet")
    resize: Literal["stretch", "crop"] = Field(
        "crop", description="the whole picture, or the largest part of the right shape in its middle"
    )
    layout: Literal["NCHW", "NHWC"] = Field("NCHW", description="order of an input's axes")
    max_skipped: int = Field(0, ge=0, description="unusable files that may be left out; each is named in the report")
    split_fractions: SplitFractions = Field(
        default_factory=SplitFractions, description="how pictures without a split of their own are divided"
    )
    seed: int = Field(0, ge=0, description="decides which picture is in which split")

    @model_validator(mode="after")
    def _channels_agree(self) -> Self:
        if len(self.mean) not in (1, 3) or len(self.std) != len(self.mean):
            raise ValueError(
                f"mean has {len(self.mean)} values and std {len(self.std)}; give three of each for colour, one for grey"
            )
        if not all(value > 0 for value in self.std):
            raise ValueError(f"std: {list(self.std)}: every value must be above 0")
        return self

    def files(self) -> tuple[DirectoryState]:
        """Return what tells whether the user's pictures are the same: their names, sizes and times.

        Reading 100 000 pictures would take minutes at every start; a file that was changed without a trace of it in
        its size and time is met when it is used (see `FileSplit.take`).
        """
        return (directory_state(self.path),)

    def load(self) -> Dataset:
        """Decode every file once, list what is of no use, and split the rest.

        Raises:
            StageError: when the folder has no classes, or too few usable pictures.
        """
        tree = index_directory(self.path)
        names = tree.classes
        if len(names) < 2:
            raise StageError(
                f"{self.path}: one class folder ({printable_name(names[0])}); a classifier needs two or more"
            )
        found = ImageScan(self.path.resolve(), self._recipe(), list(tree.strays))
        for title, classes in tree.files.items():
            for name, files in classes.items():
                found.scan(title, names.index(name), files, total=tree.total)
        try:
            splits = self._split(found, tuple(tree.files))
        except StageError as error:
            unusable = f"; unusable files ({len(found.skipped)}): {_some(found.skipped)}" if found.skipped else ""
            raise StageError(f"{self.path}: {error}{unusable}") from error
        signature = found.recipe.signature(tuple(map(printable_name, names)))
        return Dataset(splits, signature, (self._check(found.skipped),), tuple(found.skipped))

    def _recipe(self) -> ImageTransform:
        height, width = self.image_size
        how = Preprocessing(height=height, width=width, scale=1 / 255, mean=self.mean, std=self.std, resize=self.resize)
        return ImageTransform(how=how, layout=self.layout)

    def _split(self, found: ImageScan, titles: tuple[str, ...]) -> dict[str, ImageFileSplit]:
        labels = np.array(found.labels, np.int64)
        places = {title: np.flatnonzero(np.array(found.titles) == title) for title in titles}
        empty = [title for title, numbers in places.items() if not len(numbers)]
        if empty:
            raise StageError(f"no usable picture in the folder {empty[0]!r}" if empty[0] else "no usable picture")
        if "" in places:
            places = split_indices(len(labels), labels, self.split_fractions, self.seed)
        for name in ("validation", "calibration"):
            source = "train" if "train" in places else "test"
            size = round(getattr(self.split_fractions, name) * len(places[source]))
            if name in places or not size or (name == "validation" and source == "test"):
                continue
            places[source], places[name] = stratified_sample(places[source], size, labels, self.seed, name)
        # Shuffled, because later stages calibrate on and compare the first samples, which must not be of one class.
        mixed = {name: np.random.default_rng(self.seed).permutation(numbers) for name, numbers in places.items()}
        return {name: found.split(mixed[name]) for name in SPLITS if name in mixed}

    def _check(self, skipped: list[SkippedFile]) -> Check:
        return Check(
            name="data.max_skipped",
            value=len(skipped),
            op="<=",
            limit=self.max_skipped,
            unit="files",
            detail=_some(skipped),
            remedy="repair or remove these files, or let so many be left out with data.max_skipped" if skipped else "",
        )


def _some(skipped: list[SkippedFile]) -> str:
    rest = f"; and {len(skipped) - NAMED} more" if len(skipped) > NAMED else ""
    return "; ".join(f"{s.file}: {s.reason}" for s in skipped[:NAMED]) + rest
