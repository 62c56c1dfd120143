"""Disjoint splits of samples, and the files that hold them."""

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Check
from gauntlet.core.signature import Signature

SPLITS = ("train", "validation", "calibration", "test")


class Split(Protocol):
    """Samples that are read when they are asked for; nothing else is promised to be in memory."""

    @property
    def labels(self) -> npt.NDArray[np.int64] | None:
        """The classes' numbers, shape (n,), or None where nobody knows them."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def take(self, indices: npt.NDArray[np.integer] | slice) -> NamedArrays:
        """Return the inputs of some samples, by the name of the model's input."""

    def save(self, folder: Path, name: str) -> Path:
        """Write what `read_split` needs to a file in the folder and return it."""


@dataclass(frozen=True)
class ArraySplit:
    """Samples in memory: one array an input, shape (n, ...)."""

    inputs: NamedArrays
    labels: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def take(self, indices: npt.NDArray[np.integer] | slice) -> NamedArrays:
        """Return the inputs of some samples."""
        return {name: array[indices] for name, array in self.inputs.items()}

    def save(self, folder: Path, name: str) -> Path:
        """Write one `.npz` file."""
        path = folder / f"{name}.npz"
        labels = {} if self.labels is None else {"labels": self.labels}
        np.savez(path, allow_pickle=False, **self.inputs, **labels)
        return path


class SkippedFile(Frozen):
    """A file of the user's that is in no split."""

    file: str
    reason: str


@dataclass(frozen=True)
class Dataset:
    """The splits, by name, and what they say about the model's contract (its outputs are not known yet).

    `checks` are those that only the reader of the data can make; `skipped` is all that it left out.
    """

    splits: Mapping[str, Split]
    signature: Signature
    checks: tuple[Check, ...] = ()
    skipped: tuple[SkippedFile, ...] = ()


def require_labels(split: Split) -> npt.NDArray[np.int64]:
    """Return the labels of a split that must have some.

    Raises:
        StageError: when it has none.
    """
    if split.labels is None:
        raise StageError("the data has no labels")
    return split.labels


def batches(split: Split, size: int) -> Iterator[NamedArrays]:
    """Yield all samples in their order, `size` at a time; the last batch may be smaller."""
    for start in range(0, len(split), size):
        yield split.take(slice(start, start + size))


def read_npz_split(path: Path) -> ArraySplit:
    """Read an `.npz` file: `labels`, where there are any, and one array an input under the input's name.

    Raises:
        StageError: when the file is unreadable, holds no input, or the arrays differ in length.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            inputs = {name: file[name] for name in file.files}
    except (
        OSError,
        ValueError,
        KeyError,
        EOFError,
        TypeError,
        AttributeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise StageError(f"{path}: not an .npz file of plain arrays ({error})") from error
    labels = inputs.pop("labels", None)
    if not inputs:
        raise StageError(f"{path}: no input; save one array an input under its name, and 'labels' where there are any")
    shapes = {name: array.shape for name, array in inputs.items()} | (
        {} if labels is None else {"labels": labels.shape}
    )
    lengths = {shape[0] if shape else None for shape in shapes.values()}
    if len(lengths) != 1 or lengths == {None} or lengths == {0}:
        raise StageError(f"{path}: arrays of shape (samples, ...) of one length are wanted; these are {shapes}")
    if labels is None:
        return ArraySplit(inputs)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise StageError(f"{path}: labels are {labels.dtype} of shape {labels.shape}; write one whole number a sample")
    return ArraySplit(inputs, labels.astype(np.int64, copy=False))
