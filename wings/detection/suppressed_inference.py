"""Infer the form of a detector's outputs where the suppression is part of the model: one row an object."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gauntlet.core.arrays import Array, Floats, NamedArrays
from gauntlet.core.signature import BoxDecoding
from gauntlet.metrics.error_metrics import within_unit
from gauntlet.problems.output_evidence import Size
from wings.detection.box_decoding import EDGES

CORNERS = 0.95
"""Share of the rows whose third and fourth number exceed the first and second, from which on they are edges; others are
of noise, or of images that are not prepared as the model expects them."""
LIKELY = 0.05
"""Score from which on a row is an object; others are padding, whose numbers mean nothing."""
EDGE_NAMES = " ".join(EDGES)
TOP_FIRST = "top left bottom right"
ROWS = {
    6: (f"{EDGE_NAMES} score class", f"{EDGE_NAMES} class score"),
    7: (f"image {EDGE_NAMES} class score", f"image {EDGE_NAMES} score class"),
}
"""By how many numbers a row has: YOLOv10 and, of seven, YOLOv7."""


@dataclass(frozen=True)
class BoxForm:
    """The form that outputs have, the number of classes (0 where the model does not limit them), and why."""

    decode: BoxDecoding
    classes: int
    reason: str
    min_classes: int = 0


def infer_suppressed(outputs: NamedArrays, _floats: NamedArrays, size: Size) -> Iterator[BoxForm]:
    """Yield the forms that outputs, shape (n, ...), have for inputs of a height and width; padded ones, too."""
    for name, array in outputs.items():
        if array.dtype.kind != "f" or array.ndim != 3:
            continue
        for columns in ROWS.get(array.shape[2], ()):
            order = columns.split()
            numbers = [order.index(edge) for edge in (*EDGES, "score", "class")]
            how = BoxDecoding(kind="suppressed", scores=name, columns=columns)
            what = f"{name} holds a row for each detection: {columns.replace(' ', ', ')}"
            yield from _form(how, outputs, array.astype(np.float64)[:, :, numbers], size, what)
        if array.shape[2] == len(EDGES):
            yield from _apart(name, outputs, size)


def _apart(name: str, outputs: NamedArrays, size: Size) -> Iterator[BoxForm]:
    """Yield the forms in which boxes, scores and classes are outputs of their own."""
    boxes = outputs[name].astype(np.float64)
    flat = {other: a.astype(np.float64) for other, a in outputs.items() if a.shape == boxes.shape[:2]}
    for scores, first in flat.items():
        for classes, second in flat.items():
            if classes != scores and outputs[scores].dtype.kind == "f":
                how = BoxDecoding(kind="suppressed", scores=scores, boxes=name, classes=classes)
                what = f"{name}, {scores} and {classes} hold edges, a score and a class for each detection"
                rows = np.concatenate([boxes, first[:, :, None], second[:, :, None]], axis=2)
                yield from _form(how, outputs, rows, size, what)


def _form(how: BoxDecoding, outputs: NamedArrays, rows: Floats, size: Size, what: str) -> Iterator[BoxForm]:
    """Yield the form of rows, shape (n, boxes, 6): the edges as they are, score and class."""
    flat = rows.reshape(-1, 6)
    flat = flat[~np.isnan(flat).any(axis=1)]
    likely = flat[flat[:, 4] >= LIKELY]
    if not len(likely) or not within_unit(flat[:, 4]) or _are_whole(flat[:, 4]) or not _are_whole(flat[:, 5]):
        return
    shares = likely[:, :4].max() <= 2
    edges = np.ones(4) if shares else np.array([size[1], size[0], size[1], size[0]])
    ordered = (likely[:, 2:4] >= likely[:, :2]).all(axis=1)
    inside = ((likely[:, :4] >= -0.5 * edges) & (likely[:, :4] <= 1.5 * edges)).all(axis=1)
    if np.mean(ordered & inside) < CORNERS:
        return
    least, most = int(likely[:, 5].min()), int(likely[:, 5].max())
    notes = ["in pixels"]
    if shares:  # as TensorFlow's
        how, notes = how.replace(shares=True), ["as shares of the image"]
        if how.boxes is not None:
            how, notes = how.replace(columns=TOP_FIRST), ["as shares of the image, top first"]
    if least >= 1 and how.classes is not None and (shares or "label" in how.classes):
        how, most = how.replace(first_class=1), most - 1
        notes.append("classes counted from 1")
    if (count := _count(how, outputs, rows)) is not None:
        how = how.replace(count=count)
        notes.append(f"{count} says how many")
    yield BoxForm(how, 0, f"{what}; {', '.join(notes)}", 1 + most)


def _count(how: BoxDecoding, outputs: NamedArrays, rows: Floats) -> str | None:
    """Return the output with the number of rows that count, if there is one."""
    used = np.sum(rows[:, :, 4] > 0, axis=1)
    others = {name: a for name, a in outputs.items() if a.size == len(rows) and a.dtype.kind in "fiu"}
    return next(
        (name for name, array in others.items() if name not in how.outputs and (array.ravel() == used).all()), None
    )


def _are_whole(values: Array) -> bool:
    wide = values.astype(np.float64)
    return bool(np.all(wide >= -1) and np.all(wide == np.rint(wide)))
