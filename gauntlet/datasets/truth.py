"""Labels of every kind of problem: arrays whose first axis is the samples."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array
from gauntlet.core.errors import StageError
from gauntlet.core.signature import NumberTask, Task

IGNORED_PIXEL = 255
"""Pixels of this class in the truth do not count, as in Pascal VOC's masks."""
SIGN_NAMES = ("-1", "1")
"""Two classes that are numbers, but no indices."""
BOX_COLUMNS = 6
"""Left, top, right and bottom edge in pixels of the input, class (-1: no box), and 1 (0: it does not count)."""
NUMBERS: tuple[Task, ...] = get_args(NumberTask)
"""Problems whose labels are numbers without names."""
FORMS: dict[Task, tuple[str, tuple[int, ...], str]] = {
    "classification": ("iu", (1,), "one whole number per sample"),
    "embedding": ("iu", (1,), "one whole number per sample"),
    "multi-label": ("iu", (2,), "0 or 1 for each class, shape (samples, classes)"),
    "tagging": ("iu", (2,), "whole numbers, negative where they do not count, shape (samples, positions)"),
    "detection": ("f", (3,), "left, top, right, bottom, class (-1: no box) and 1, shape (samples, boxes, 6)"),
    "segmentation": ("iu", (3,), "whole numbers, shape (samples, height, width)"),
    "regression": ("fiu", (1, 2), "numbers, shape (samples,) or (samples, values)"),
    "ranking": ("fiu", (1,), "the relevance of each sample, shape (samples,)"),
    "quantiles": ("fiu", (1,), "one number per sample"),
    "text": ("U", (1,), "one text per sample"),
}
"""Kinds of NumPy's types and numbers of axes that the labels of a problem have, and both in words."""


def plain_masks(masks: Sequence[Array]) -> list[Array]:
    """Return masks with class 1 for white, where all are black and white: no pixel of 255 would count."""
    values = {*chain.from_iterable(np.unique(mask).tolist() for mask in masks)}
    return [mask // IGNORED_PIXEL for mask in masks] if values == {0, IGNORED_PIXEL} else [*masks]


def class_indices(labels: Array | None) -> npt.NDArray[np.int64] | None:
    """Return labels that are the class of each sample, shape (n,); None for others."""
    return None if labels is None or labels.ndim != 1 or labels.dtype.kind not in "iu" else labels.astype(np.int64)


def names_in(labels: Iterable[Array]) -> tuple[str, ...]:
    """Return the names of classes where labels are these: texts, or -1 and 1, as scikit-learn's binary ones may be."""
    values = {*chain.from_iterable(array.tolist() for array in labels if array.ndim == 1)}
    if values == {-1, 1}:
        return SIGN_NAMES
    return tuple(sorted(values)) if all(isinstance(value, str) for value in values) else ()


def in_form(labels: Array, task: Task, names: tuple[str, ...]) -> Array:
    """Return labels in the type that a problem takes: classes as whole numbers, values as floats.

    Classes may be floats that are whole, 0.0, 1.0, ..., or some of `names`, or -1 and 1 where these are the names;
    raise StageError where one is not.
    """
    if task in NUMBERS and labels.dtype.kind in "iu":
        return labels.astype(np.float64)
    if task == "arrays" or FORMS[task][0] != "iu":
        return labels
    if labels.dtype.kind in "if" and labels.ndim == 1 and names == SIGN_NAMES and _are_whole(labels):
        labels = labels.astype(np.int64).astype(np.str_)
    if labels.dtype.kind == "U" and labels.ndim == 1:
        if unknown := sorted({*labels.tolist()} - {*names}):
            raise StageError(f"data.labels: no class is called {unknown[0]!r}; classes: {', '.join(names[:10])}")
        order = np.argsort(names)
        return np.asarray(order[np.searchsorted(np.array(names)[order], labels)])
    return labels.astype(np.int64) if labels.dtype.kind == "f" and _are_whole(labels) else labels


def in_axes(labels: Array, task: Task) -> Array:
    """Return labels with the axes that a problem takes: without one of length 1, and one-hot classes as numbers."""
    ranks = FORMS[task][1] if task in FORMS else (labels.ndim,)
    if labels.ndim in ranks or labels.ndim - 1 not in ranks:
        return labels
    if (unit := next((axis for axis in (labels.ndim - 1, 1) if labels.shape[axis] == 1), None)) is not None:
        return labels.squeeze(unit)
    return labels.argmax(axis=1) if task == "classification" and are_one_hot(labels) else labels


def are_one_hot(labels: Array) -> bool:
    """Return whether labels are 1 for the class of each sample and 0 for all others, shape (n, classes)."""
    several = labels.ndim == 2 and labels.shape[1] > 1 and labels.dtype.kind in "iuf"
    return several and bool(np.isin(labels, (0, 1)).all() and (labels.sum(axis=1) == 1).all())


def are_class_numbers(labels: Array) -> bool:
    """Return whether labels, shape (n,), may be the numbers of classes: whole and not negative, of any type."""
    return labels.ndim == 1 and labels.dtype.kind in "iuf" and bool(np.all(np.sign(labels) >= 0)) and _are_whole(labels)


def _are_whole(labels: Array) -> bool:
    return bool(np.all(labels == np.floor(labels)))


def task_of(labels: Array | None) -> Task:
    """Return the problem that labels of this type and shape, (n, ...), are most likely the truth of.

    Several whole numbers per sample are independent classes if all are 0 or 1, and otherwise one class per position.
    """
    if labels is None:
        return "arrays"
    labels = labels.squeeze(1) if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.ndim == 2 and labels.dtype.kind in "iu" and not np.isin(labels, (0, 1)).all():
        return "tagging"
    whole_map = labels.ndim == 3 and labels.shape[2] != BOX_COLUMNS and labels.dtype.kind == "f" and _are_whole(labels)
    kind = "i" if whole_map else labels.dtype.kind
    order: tuple[Task, ...] = ("classification", "multi-label", "detection", "segmentation", "text", "regression")
    fitting = (t for t in order if kind in FORMS[t][0] and labels.ndim in FORMS[t][1])
    return next((t for t in fitting if t != "detection" or labels.shape[2] == BOX_COLUMNS), "arrays")


def label_names(task: Task, defaults: tuple[str, ...], labels: Mapping[Path, Array]) -> tuple[str, ...]:
    """Return the names of classes, values or characters: those given, or the numbers or characters that occur.

    Without labels, they are those given.

    Raises:
        StageError: when labels do not have the form of the problem, or one has no name.
    """
    if not labels:
        return defaults
    if task == "arrays":
        path, array = next(iter(labels.items()))
        fix = "Fix: remove them, or say what they mean with data.task (--task)"
        raise StageError(f"{path}: labels are {array.dtype}{list(array.shape)}; data.task arrays takes none. {fix}")
    kinds, ranks, form = FORMS[task]
    for path, array in labels.items():
        if array.dtype.kind not in kinds or array.ndim not in ranks:
            raise StageError(f"{path}: labels are {array.dtype}{list(array.shape)}; data.task {task} needs {form}")
        if task == "detection" and array.shape[2] != BOX_COLUMNS:
            raise StageError(f"{path}: labels have {array.shape[2]} columns; data.task {task} needs {form}")
    names = defaults or _default_names(task, [*labels.values()])
    for path, array in labels.items():
        if wrong := _unnamed(task, array, names):
            allowed = f"data.labels names {len(names)} {'characters' if task == 'text' else 'classes'}"
            allowed += "" if task == "text" or not names else f", so 0 to {len(names) - 1} are allowed"
            fix = "number the classes from 0" + (", or save their names, as texts" if task == "classification" else "")
            if task == "multi-label" and array.shape[1] == len(names):
                allowed, fix = "each of several classes is 0 or 1", f"save {FORMS[task][2]}"
            fix += "; leave out samples without a label" if -1 in wrong else ""
            raise StageError(f"{path}: labels {wrong[:10]} are out of range; {allowed}. Fix: {fix}")
    return names


def _default_names(task: Task, labels: list[Array]) -> tuple[str, ...]:
    if task == "text":
        return tuple(sorted(set("".join(text for array in labels for text in array.tolist()))))
    if task == "detection":
        return tuple(map(str, range(int(max(array[:, :, 4].max(initial=-1) for array in labels)) + 1)))
    if task in (*NUMBERS, "multi-label"):
        return tuple(map(str, range(labels[0].shape[1] if labels[0].ndim == 2 else 1)))
    numbers = np.concatenate([np.unique(array) for array in labels])
    highest = int(np.max(numbers, initial=-1, where=numbers != IGNORED_PIXEL if task == "segmentation" else True))
    return tuple(map(str, range(highest + 1)))


def _unnamed(task: Task, labels: Array, names: tuple[str, ...]) -> list[int] | list[str]:
    """Return the labels that have no name, sorted."""
    if task == "text":
        return sorted(set("".join(labels.tolist())) - set("".join(names)))
    if task in NUMBERS:
        return []
    if task == "detection":
        return sorted(map(int, {*np.unique(labels[:, :, 4]).tolist()} - {-1, *range(len(names))}))
    if task == "multi-label":
        wide = range(labels.shape[1]) if labels.shape[1] != len(names) else ()
        return [*wide] or sorted(set(np.unique(labels).tolist()) - {0, 1})
    allowed = {*range(len(names))} | ({IGNORED_PIXEL} if task == "segmentation" else set())
    return sorted(number for number in {*np.unique(labels).tolist()} - allowed if task != "tagging" or number >= 0)
