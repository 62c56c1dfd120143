"""Further samples beside a dataset's own, for example the labeled requests that a model was asked in production."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, fits_shape
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature
from gauntlet.datasets.audit import shared_samples
from gauntlet.datasets.splits import ArraySplit, Dataset, Splits, read_npz_split
from gauntlet.images.preprocessing import fitting_inputs
from wings.datasets.extended_split import ExtendedSplit

EXTENDED = ("train", "validation", "calibration")
"""The splits that get further samples: the test split stays as it is, so that runs can be compared on it."""


def with_extra_samples(dataset: Dataset, files: tuple[Path, ...]) -> Dataset:
    """Return a dataset with the samples of some `.npz` files in the splits that a model learns from.

    Each of these gets a part in proportion of its size. A sample that is in the dataset, or was in the files before,
    is left out.

    Raises:
        StageError: when a file cannot be read, or its samples do not fit the dataset.
    """
    extra = _concatenated([_read(file, dataset) for file in files])
    known = {own for split in dataset.splits.values() for own, _ in shared_samples(extra, split)}
    chosen = np.array([own for own, _ in shared_samples(extra, extra) if own not in known], np.int64)
    splits = dict(dataset.splits)
    for name, indices in _shares(chosen, dataset.splits).items():
        if len(indices):
            own, part = splits[name], _part(extra, indices)
            splits[name] = _concatenated([own, part]) if isinstance(own, ArraySplit) else ExtendedSplit(own, part)
    return Dataset(splits, dataset.signature, dataset.checks, dataset.skipped)


def _read(file: Path, dataset: Dataset) -> ArraySplit:
    """Read one file; its inputs and labels must be like those of the split `train`."""
    train = dataset.splits.get("train")
    if train is None or train.labels is None:
        raise StageError(f"extra_samples: {file}: the data has no labeled split `train` to add samples to")
    split = read_npz_split(file)
    split = replace(split, inputs=fitting_inputs(split.inputs, dataset.signature))
    if problem := _input_problem(split, dataset.signature) or _label_problem(split, train.labels, dataset.signature):
        raise StageError(
            f"extra_samples: {file}: {problem}. Fix: write the inputs as the model takes them, with 'labels'"
        )
    return split


def _label_problem(split: ArraySplit, known: Array, signature: Signature) -> str:
    """Return how the labels differ from the data's, or nothing."""
    if split.labels is None:
        return "no 'labels'"
    if split.labels.dtype.kind != known.dtype.kind or split.labels.shape[1:] != known.shape[1:]:
        actual, expected = (f"{array.dtype}{list(array.shape[1:])}" for array in (split.labels, known))
        return f"labels are {actual} a sample, those of the data {expected}"
    classes = len(signature.labels)
    if signature.task != "classification":
        return ""
    wrong = [int(label) for label in np.unique(split.labels) if not 0 <= label < classes]
    return f"labels {wrong[:5]} are out of range (0 to {classes - 1})" if wrong else ""


def _input_problem(split: ArraySplit, signature: Signature) -> str:
    """Return how the arrays differ from the model's inputs, or nothing."""
    for spec in signature.inputs:
        array = split.inputs.get(spec.name)
        if array is None or array.dtype.name != spec.dtype or not fits_shape(array.shape, spec.shape, skip=1):
            actual = "missing" if array is None else f"{array.dtype}{list(array.shape[1:])}"
            return f"input {spec.name!r} is {actual}, but the data has {spec.dtype}{list(spec.shape[1:])} a sample"
    more = sorted(split.inputs.keys() - {spec.name for spec in signature.inputs})
    return f"unknown input {more[0]!r}" if more else ""


def _shares(chosen: npt.NDArray[np.int64], splits: Splits) -> dict[str, npt.NDArray[np.int64]]:
    """Return the samples for each split, drawn evenly over all of them."""
    names = [name for name in EXTENDED if name in splits]
    ends = np.cumsum([len(splits[name]) for name in names])
    shuffled = np.random.default_rng(0).permutation(chosen)
    cuts = np.round(len(shuffled) * ends[:-1] / ends[-1]).astype(np.int64)
    return dict(zip(names, map(np.sort, np.split(shuffled, cuts)), strict=True))


def _part(split: ArraySplit, indices: npt.NDArray[np.int64]) -> ArraySplit:
    assert split.labels is not None
    return ArraySplit(split.take(indices), split.labels[indices])


def _concatenated(splits: list[ArraySplit]) -> ArraySplit:
    inputs = {name: np.concatenate([split.inputs[name] for split in splits]) for name in splits[0].inputs}
    return ArraySplit(inputs, np.concatenate([split.labels for split in splits if split.labels is not None]))
