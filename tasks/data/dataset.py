"""Four disjoint splits of labelled arrays, and the files that hold them."""

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tasks.errors import StageError
from tasks.signature import Signature

SPLITS = ("train", "validation", "calibration", "test")


@dataclass(frozen=True)
class Split:
    """Model-ready inputs, shape (n, ...) float32, and labels, shape (n,) int64."""

    inputs: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Dataset:
    """All splits, by name, and what they say about the model's contract (its outputs are not known yet)."""

    splits: dict[str, Split]
    signature: Signature


def read_split(path: Path) -> Split:
    """Read one split from an `.npz` file with the arrays `inputs` and `labels`.

    Raises:
        StageError: when the file is unreadable, an array is missing, or their lengths differ.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            inputs, labels = file["inputs"], file["labels"]
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise StageError(f"{path}: not an .npz file with the arrays 'inputs' and 'labels' ({error})") from error
    if inputs.ndim == 0 or labels.ndim != 1 or len(inputs) != len(labels):
        raise StageError(f"{path}: inputs has shape {inputs.shape}, labels {labels.shape}; labels must be one an input")
    if inputs.dtype.kind not in "fiub" or labels.dtype.kind not in "iu":
        raise StageError(f"{path}: inputs are {inputs.dtype}, labels {labels.dtype}; write numbers and whole numbers")
    return Split(inputs.astype(np.float32, copy=False), labels.astype(np.int64, copy=False))
