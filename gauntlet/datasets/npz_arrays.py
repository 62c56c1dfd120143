"""The user's own arrays: `.npz` files with one array per input, and optionally labels."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from gauntlet.core.arrays import Array, NamedArrays, dtype_name
from gauntlet.core.errors import StageError
from gauntlet.core.kinds import kinds
from gauntlet.core.signature import BoxDecoding, Signature, Task, TensorSpec
from gauntlet.datasets.audit import sample_digests
from gauntlet.datasets.splits import SPLIT_WORDS, SPLITS, ArraySplit, Dataset, DataSource, read_npz_split
from gauntlet.datasets.splitting import (
    GROUPS,
    TIMES,
    SplitFractions,
    keep_copies_together,
    split_blocks,
    split_indices,
    stratified_sample,
)
from gauntlet.datasets.truth import (
    are_class_numbers,
    class_indices,
    in_axes,
    in_form,
    label_names,
    names_in,
    plain_masks,
    task_of,
)

MAX_NAMED = 10
"""Files named in a message."""


class NpzArrays(DataSource):
    """One `.npz` file, or a folder of them, with one array per input under its name, and optionally `labels`.

    A folder whose files are named after the splits holds one file per split; any other folder holds parts of one set,
    ordered by name. A set without splits is split here: at random, or by the arrays `split_groups` or `split_times`.
    """

    kind: Literal["arrays"] = "arrays"
    path: Path = Field(description="the file or folder; arrays must be preprocessed, shape (samples, ...)")
    task: Task | None = Field(
        None, description="what the outputs mean; default: what type and shape of the labels suggest"
    )
    labels: tuple[str, ...] = Field((), description="names of classes or values by index; the characters of texts")
    threshold: float | None = Field(
        None, gt=0, lt=1, description="probability from which on the second of two classes is predicted; default: 0.5"
    )
    decode: BoxDecoding | None = Field(None, description="of a detector: how its outputs become boxes")
    layout: Literal["NCHW", "NHWC", "none"] = "NCHW"
    split_fractions: SplitFractions = Field(default_factory=SplitFractions, description="used without split files")
    seed: int = Field(0, ge=0, description="determines which sample is in which split")

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        if not self.path.is_dir():
            return (self.path,)
        order = {f"{name}.npz": position for position, name in enumerate(SPLITS)}
        return tuple(sorted(self.path.glob("*.npz"), key=lambda path: (order.get(path.name, len(order)), path.name)))

    def load(self) -> Dataset:
        """Read the splits, or read one set and split it.

        Raise StageError if a file is missing or unreadable, the shapes differ, or a label has no name.
        """
        files = self.files()
        if not files:
            raise StageError(f"{self.path}: no .npz file in this folder")
        is_split = self._is_split(files)
        parts = _read(files)
        keys = _taken_out(parts)
        shapes = {
            path.name: {name: (dtype_name(array), *array.shape[1:]) for name, array in part.inputs.items()}
            for path, part in parts.items()
        }
        first = shapes[files[0].name]
        if any(shape != first for shape in shapes.values()):
            raise StageError(f"{self.path}: the files' arrays differ in name, type or shape: {shapes}")
        unlabelled = [path.name for path, part in parts.items() if part.labels is None]
        if len({frozenset(part.heads) for part in parts.values()}) > 1:
            raise StageError(f"{self.path}: 'labels_OUTPUT' are not in every file. Fix: label all or none")
        if unlabelled and len(unlabelled) < len(parts):
            raise StageError(f"{self.path}: {unlabelled} have no 'labels', the other files do. Fix: label all or none")
        truth = {path: part.labels for path, part in parts.items() if part.labels is not None}
        task = self.task or self._likely_task(truth)
        truth = {path: in_axes(labels, task) for path, labels in truth.items()}
        if task == "segmentation":
            truth = dict(zip(truth, plain_masks([*truth.values()]), strict=True))
        names = self.labels or (names_in(truth.values()) if task == "classification" else ())
        truth = {path: in_form(labels, task, names) for path, labels in truth.items()}
        parts = {path: replace(part, labels=truth.get(path)) for path, part in parts.items()}
        labels = label_names(task, names, truth)
        inputs = tuple(TensorSpec(name=n, dtype=dtype, shape=("batch", *s)) for n, (dtype, *s) in first.items())
        signature = Signature(
            task=task,
            inputs=inputs,
            outputs=(),
            layout=self.layout if any(len(spec.shape) == 4 for spec in inputs) else "none",
            labels=labels,
            threshold=self.threshold,
            decode=self.decode,
        )
        if truth and (completed := kinds("truth").get(task)):
            parts = completed(parts, keys)
        if is_split:
            return Dataset(self._with_calibration({path.stem: part for path, part in parts.items()}), signature)
        whole = _concatenated(list(parts.values()))
        classes = class_indices(whole.labels)
        if keys:
            [(by, values)] = keys.items()
            indices = split_blocks(values, self.split_fractions, self.seed, by)
        else:
            indices = split_indices(len(whole), classes, self.split_fractions, self.seed)
            indices = keep_copies_together(indices, sample_digests(whole), classes)
        leaks = () if keys else tuple(check for found in kinds("leak").values() for check in found(whole.inputs))
        return Dataset({name: whole.at(chosen) for name, chosen in indices.items()}, signature, leaks)

    def _likely_task(self, truth: dict[Path, Array]) -> Task:
        """Return the problem that labels suggest; with several names, whole numbers are classes, even as floats."""
        if len(self.labels) > 1 and truth and all(map(are_class_numbers, truth.values())):
            return "classification"
        return task_of(next(iter(truth.values()), None))

    def _with_calibration(self, splits: dict[str, ArraySplit]) -> dict[str, ArraySplit]:
        """Return splits with one for calibration, which is taken out of `train`, or without that of `test`."""
        donor = "train" if "train" in splits else "test"
        count, classes = len(splits[donor]), class_indices(splits[donor].labels)
        size = round(self.split_fractions.calibration * count)
        if "calibration" in splits or not 0 < size < count:
            return splits
        _, counts = np.unique([] if classes is None else classes, return_counts=True)
        classes = classes if min(counts, default=0) > 1 and size >= len(counts) else None
        left, drawn = stratified_sample(np.arange(count), size, classes, self.seed, "calibration")
        return splits | {donor: splits[donor].at(left), "calibration": splits[donor].at(drawn)}

    def _is_split(self, files: tuple[Path, ...]) -> bool:
        splits = [path.name for path in files if path.stem in SPLITS]
        others = [path.name for path in files if path.stem not in SPLITS]
        named_so = len(files) > 1 and all(path.stem.lower() in SPLIT_WORDS for path in files)
        if not self.path.is_dir() or not (splits or named_so):
            return False
        if others or "test.npz" not in splits:
            problem = f"{others[:5]} are not" if others else "but there is no test.npz"
            raise StageError(
                f"{self.path}: {splits} are splits, {problem}; expected one file per split (test.npz, optionally "
                "train.npz, validation.npz, calibration.npz), or parts of one set under other names"
            )
        return True


def _read(files: tuple[Path, ...]) -> dict[Path, ArraySplit]:
    """Read all files, or name all that cannot be used."""
    parts: dict[Path, ArraySplit] = {}
    errors: list[str] = []
    for path in files:
        try:
            parts[path] = read_npz_split(path)
        except StageError as error:
            errors.append(str(error))
            continue
        for name, array in parts[path].inputs.items():
            if array.dtype.kind not in "fiubU":
                errors.append(f"{path}: {name!r} is {array.dtype}; expected numbers, booleans or strings")
                break
    if errors:
        header = [f"{len(errors)} of {len(files)} files cannot be used:"] if len(errors) > 1 else []
        rest = [f"and {len(errors) - MAX_NAMED} more"] if len(errors) > MAX_NAMED else []
        raise StageError("\n".join([*header, *errors[:MAX_NAMED], *rest]))
    return parts


def _taken_out(parts: dict[Path, ArraySplit]) -> NamedArrays:
    """Remove the arrays that say how to split from the inputs; return the one that there is, over all parts."""
    by = [name for name in (GROUPS, TIMES) if any(name in part.inputs for part in parts.values())]
    if len(by) > 1:
        raise StageError(f"{next(iter(parts))}: {GROUPS} and {TIMES}; only one of them can say how to split")
    try:
        keys = {name: np.concatenate([part.inputs.pop(name) for part in parts.values()]) for name in by}
    except KeyError as error:
        raise StageError(f"{error} is not in every file of {[path.name for path in parts]}") from error
    if wrong := [name for name, values in keys.items() if values.ndim != 1]:
        raise StageError(f"{wrong[0]} has shape {keys[wrong[0]].shape}; expected one number or text for each sample")
    if TIMES in keys and keys[TIMES].dtype.kind == "U":
        try:
            keys[TIMES] = keys[TIMES].astype("datetime64[us]")
        except ValueError as error:
            raise StageError(f"{TIMES}: {error}. Fix: write numbers, or times as 2026-11-26T18:30") from error
    return keys


def _concatenated(parts: list[ArraySplit]) -> ArraySplit:
    inputs = {name: np.concatenate([part.inputs[name] for part in parts]) for name in parts[0].inputs}
    labels = [part.labels for part in parts if part.labels is not None]
    heads = {output: np.concatenate([part.heads[output] for part in parts]) for output in parts[0].heads}
    return ArraySplit(inputs, np.concatenate(labels) if labels else None, heads)
