"""What annotation files say of images: their objects, classes and splits, and what cannot be used."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gauntlet.core.errors import ConfigError
from gauntlet.datasets.splits import SkippedFile
from gauntlet.datasets.truth import BOX_COLUMNS
from gauntlet.problems.output_evidence import InferredProblem

SPLIT_OF_WORD = {
    "train": "train",
    "training": "train",
    "trainval": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "minival": "validation",
    "test": "test",
    "testing": "test",
}
"""A word in the name of a file or folder, such as `instances_val2017` -> split."""


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
        text = repr(value)
        text = text if len(text) <= 80 else f"{text[:77]}..."
        self.defects.append(SkippedFile(file=place, reason=f"{what} is {text}; allowed: {allowed}. Fix: {fix}"))


def with_truth(
    part: dict[str, Any],
    problem: InferredProblem,
    named: tuple[str, ...],
    annotation: dict[str, Any],
    names: tuple[str, ...],
    what: str,
) -> str:
    """Let the boxes or masks of a folder judge a model; change the part `data`, and return what was found.

    Args:
        part: of the configuration of a brought model.
        problem: what the model's outputs mean.
        named: the classes that the user names.
        annotation: the settings that read the folder; none where it has nothing.
        names: the folder's classes.
        what: the folder has, in a word.

    Raises:
        ConfigError: for a class that the user does not name.
    """
    if not annotation:
        return ""
    classes = len(named or problem.labels) or problem.min_classes
    if all(map(str.isdecimal, names)):  # the folder names none
        names = tuple(map(str, range(max(classes, len(names)))))
    elif unknown := [name for name in names if named and name not in named]:
        raise ConfigError(f"--data {part['path']}: the class {unknown[0]!r} is not among the labels of --labels")
    else:
        names = named or names
    if len(names) < classes or (problem.labels and len(names) != classes):
        return f"; the folder's {what} of {len(names)} classes are left out, because the model has {classes}"
    part["resize"] = part.get("resize", "stretch")
    part |= {key: str(value) if isinstance(value, Path) else value for key, value in annotation.items()}
    part["labels"] = list(names)
    for key in ("labelled", "task"):
        part.pop(key, None)
    return f"; judged by the folder's {what}" + ("" if named else ", whose classes are ASSUMED to be in its order")


def padded_boxes(images: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """Return the objects of images, each of shape (k, 6), as one array; rows without an object have class -1."""
    boxes = np.zeros((len(images), max(map(len, images), default=0), BOX_COLUMNS), np.float32)
    boxes[:, :, 4] = -1
    for target, rows in zip(boxes, images, strict=True):
        target[: len(rows)] = np.reshape(rows, (-1, BOX_COLUMNS))
    return boxes
