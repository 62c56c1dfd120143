"""Disjoint splits of samples, and the files that hold them."""

import struct
import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from lzma import LZMAError
from pathlib import Path
from tokenize import TokenError
from typing import Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gauntlet.core.arrays import Array, NamedArrays, read_arrays, write_arrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.report import Check
from gauntlet.core.signature import Signature
from gauntlet.datasets.truth import class_indices

SplitName = Literal["train", "validation", "calibration", "test"]
SPLITS = get_args(SplitName)
SPLIT_WORDS = {*SPLITS, "training", "val", "valid", "dev", "testing"}
"""What people call splits, in small letters."""
LABELS, HEAD = "labels", "labels_"
"""The array with the truth of the primary output, and the beginning of the name of that of another output."""
INPUT = "input:"
"""The beginning of the name of an array for an input that is called as the truth is."""
MAX_NAMED = 5
"""Files named in a message."""
ZIP_ERRORS = (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error, LZMAError, struct.error)
"""What `zipfile` raises for damaged archives; `RuntimeError` and its `NotImplementedError` for altered flags."""
NPZ_ERRORS = (*ZIP_ERRORS, KeyError, TypeError, AttributeError, ArithmeticError, SyntaxError, TokenError, MemoryError)
"""What reading a damaged `.npz` file may raise; NumPy parses an array's header as Python."""


class Split(Protocol):
    """Samples that are read on demand, so that a dataset need not fit into memory."""

    @property
    def labels(self) -> Array | None:
        """The truth, shape (n, ...), or None if it is unknown: class indices, values, masks or texts."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def take(self, indices: npt.NDArray[np.integer] | slice) -> NamedArrays:
        """Return the inputs of some samples, by the name of the model's input."""

    def save(self, folder: Path, name: str) -> Path:
        """Write what `read_split` needs to a file in the folder and return it."""


Splits = Mapping[str, Split]


@dataclass(frozen=True)
class ArraySplit:
    """Samples in memory: one array per input, shape (n, ...); `heads` is the truth of further outputs, by output."""

    inputs: NamedArrays
    labels: Array | None = None
    heads: NamedArrays = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def take(self, indices: npt.NDArray[np.integer] | slice) -> NamedArrays:
        """Return the inputs of some samples."""
        return {name: array[indices] for name, array in self.inputs.items()}

    def at(self, indices: npt.NDArray[np.integer]) -> "ArraySplit":
        """Return some samples as a split."""
        heads = {output: array[indices] for output, array in self.heads.items()}
        return ArraySplit(self.take(indices), None if self.labels is None else self.labels[indices], heads)

    def save(self, folder: Path, name: str) -> Path:
        """Write one `.npz` file."""
        path = folder / f"{name}.npz"
        labels = {} if self.labels is None else {LABELS: self.labels}
        heads = {f"{HEAD}{output}": array for output, array in self.heads.items()}
        inputs = {array_name(name): array for name, array in self.inputs.items()}
        write_arrays(path, inputs | labels | heads)
        return path


class DataSource(Frozen):
    """What every kind of data has."""

    kind: str

    @property
    def packages(self) -> dict[str, str]:
        """Packages needed beyond the base installation -> the project extra that installs each."""
        return {} if getattr(self, "hog", None) is None else {"skimage": "sklearn"}

    def files(self) -> tuple[object, ...]:
        """Return the user's files that are read."""
        return ()

    @abstractmethod
    def load(self) -> "Dataset":
        """Read and split the samples; raise StageError if they cannot be read."""


class SkippedFile(Frozen):
    """A file of the user's that is in no split."""

    file: str
    reason: str


class NearDuplicate(Frozen):
    """A test image and the image of another split that it resembles, by file or by `split[index]`."""

    test: str
    other: str
    correlation: Number = Field(description="of both images as 16 x 16 gray pixels")


def skipped_check(skipped: Sequence[SkippedFile], most: int, what: str = "files") -> Check:
    """Return the check that fails where more than `data.max_skipped` of the user's files are left out."""
    fix = f"repair or remove these {what}, or raise data.max_skipped"
    return Check.of("data.max_skipped", len(skipped), "<=", most, summary(skipped), fix, unit=what)


def summary(skipped: Sequence[SkippedFile]) -> str:
    """Return the first few with their reasons; the facts of the stage list all."""
    rest = f"; and {len(skipped) - MAX_NAMED} more" if len(skipped) > MAX_NAMED else ""
    return "; ".join(f"{s.file}: {s.reason}" for s in skipped[:MAX_NAMED]) + rest


@dataclass(frozen=True)
class Dataset:
    """The splits by name, and the model's signature without its outputs.

    `checks` are those that only the reader of the data can make; `skipped` lists the files that it left out. Samples
    that are `random` may be equal by chance, as token numbers or flags often are: that is no leak.
    """

    splits: Splits
    signature: Signature
    checks: tuple[Check, ...] = ()
    skipped: tuple[SkippedFile, ...] = ()
    random: bool = False


def require_labels(split: Split) -> npt.NDArray[np.int64]:
    """Return the class of each sample; raise StageError if the split has none."""
    labels = class_indices(split.labels)
    if labels is None:
        raise StageError("training needs the class of each sample; the data has none")
    return labels


def batches(split: Split, size: int) -> Iterator[NamedArrays]:
    """Yield all samples in order, `size` at a time; the last batch may be smaller."""
    for start in range(0, len(split), size):
        yield split.take(slice(start, start + size))


def read_npz_split(path: Path) -> ArraySplit:
    """Read an `.npz` file with one array per input, under its name, and optionally `labels` and `labels_OUTPUT`.

    Raise StageError if the file is unreadable, has no input, or the arrays differ in length.
    """
    try:
        inputs = read_arrays(path)
    except NPZ_ERRORS as error:
        raise StageError(f"{path}: not an .npz file of plain arrays ({error})") from error
    shapes = {name: array.shape for name, array in inputs.items()}
    truth = {name: inputs.pop(name) for name in shapes if is_truth(name)}
    if not inputs:
        raise StageError(f"{path}: no input; save one array per input under its name, and optionally 'labels'")
    lengths = {shape[0] if shape else None for shape in shapes.values()}
    if len(lengths) != 1 or lengths <= {None, 0}:
        fix = "Fix: save one row a sample"
        raise StageError(f"{path}: expected arrays of shape (samples, ...) of one length, got {shapes}. {fix}")
    truth = {name: _checked_labels(path, name, labels) for name, labels in truth.items()}
    labels = truth.pop(LABELS, None)
    if truth and labels is None:
        what = f"{next(iter(truth))} without {LABELS}. Fix: rename those of the primary output to {LABELS}"
        raise StageError(f"{path}: {what}, and name that with train.primary_output")
    inputs = {input_name(name): array for name, array in inputs.items()}
    return ArraySplit(inputs, labels, {name.removeprefix(HEAD): array for name, array in truth.items()})


def is_truth(name: str) -> bool:
    """Return whether the array of this name, beside the inputs, holds labels."""
    return name == LABELS or name.startswith(HEAD)


def array_name(name: str) -> str:
    """Return the name of the array for an input: `input:labels` for one that is called as the truth is."""
    return f"{INPUT}{name}" if is_truth(name) else name


def input_name(array: str) -> str:
    """Return the name of the input that an array is for."""
    return array.removeprefix(INPUT)


def _checked_labels(path: Path, name: str, labels: Array) -> Array:
    labels = labels.astype(np.int64) if labels.dtype.kind == "b" else labels
    if labels.dtype.kind == "f" and not (known := np.isfinite(labels)).all():
        missing = int((~known).reshape(len(labels), -1).any(axis=1).sum())
        what = f"{name} of {missing} of {len(labels)} samples are NaN or infinite"
        raise StageError(f"{path}: {what}. Fix: leave out samples without a label, or all {name}")
    if labels.dtype.kind not in "iufU":
        raise StageError(
            f"{path}: {name} are {labels.dtype} of shape {labels.shape}; expected whole numbers (classes, masks), "
            "numbers, or texts, shape (samples, ...)"
        )
    return labels.astype(np.int64, copy=False) if labels.dtype.kind in "iu" else labels
