"""From a detector's outputs to boxes in the pixels of its input.

The forms of the outputs, by `decode.kind`:

- `fcos`: `scores` are logits for the cells of a grid over the image, shape (n, classes, rows, columns), and `boxes`
  the logarithms of the distances, in cells, from a cell's center to the left, top, right and bottom edge of its
  box, shape (n, 4, rows, columns) (Tian et al., FCOS, ICCV 2019).
- `ssd`: `scores` are probabilities, shape (n, boxes, 1 + classes), where class 0 is the background, and `boxes`
  left, top, right and bottom edge as shares of the image, shape (n, boxes, 4) (Liu et al., SSD, ECCV 2016).
- `detr`: `scores` are logits, shape (n, boxes, classes + 1), where the last class is no object, and `boxes` center
  x, center y, width and height as shares of the image, shape (n, boxes, 4) (Carion et al., DETR, ECCV 2020). There
  is no suppression: each object has one box.
- `yolov8`: one output, shape (n, 4 + classes, boxes), or (n, boxes, 4 + classes) if `transposed`: center x,
  center y, width and height in pixels of the input, then a probability per class.
- `yolov5`: one output, shape (n, boxes, 5 + classes): the same four numbers, the probability of an object, and that
  of each class given an object.
- `yolo-nas`: `scores` are probabilities, shape (n, boxes, classes), and `boxes` left, top, right and bottom edge in
  pixels of the input, shape (n, boxes, 4) (Aharon et al., Super-Gradients, 2023).
- `suppressed`: the suppression is part of the model, which has a fixed number of rows, or one for each object.
  Either one output, shape (n, boxes, 6): left, top, right and bottom edge in pixels of the input, score, class
  (Wang et al., YOLOv10, NeurIPS 2024); or three: `boxes` (n, boxes, 4), `scores` (n, boxes) and `classes`
  (n, boxes), as of NVIDIA's `EfficientNMS`. Rows with a score below `min_score` or a negative class are padding,
  and so are those from the number in `count` on.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
from scipy.special import expit, softmax

from gauntlet.core.arrays import Array, Floats, NamedArrays
from gauntlet.core.signature import BoxDecoding
from gauntlet.problems.output_evidence import Size

MAX_CANDIDATES = 1000
"""Boxes of an image that enter the suppression, those with the highest scores."""
EDGES = ("left", "top", "right", "bottom")
WITHOUT_SUPPRESSION = ("detr", "suppressed")
MAX_CLASSES = 1 << 14
"""A suppressed row whose class is a larger number, or infinite, is no object."""
LARGEST_LOGARITHM = 10.0
"""Of a distance in cells; larger ones reach beyond every image and would overflow."""


def decode_boxes(how: BoxDecoding, outputs: NamedArrays, size: Size) -> npt.NDArray[np.float32]:
    """Return the detections of each image, shape (n, `how.max_detections`, 6), best first.

    A row is left, top, right and bottom edge in pixels of the input, whose height and width are `size`, the class, and
    the score; rows without a detection are -1, 0 in all other columns.
    """
    boxes, scores = FORMS[how.kind](how, outputs, size)
    detections = np.zeros((len(boxes), how.max_detections, 6), np.float32)
    detections[:, :, 4] = -1
    edges = np.array([size[1], size[0], size[1], size[0]], np.float64)
    for index in range(len(boxes)):
        rows = _best(how, np.clip(boxes[index], 0, edges), scores[index])
        detections[index, : len(rows)] = rows
    return detections


def _best(how: BoxDecoding, boxes: Floats, scores: Floats) -> Floats:
    """Return the rows of one image: boxes (k, 4) with a score per class, (k, classes), after the suppression."""
    usable = np.isfinite(boxes).all(axis=1) & (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    places, classes = np.nonzero((scores >= how.min_score) & usable[:, None])
    values = scores[places, classes]
    order = np.argsort(-values, kind="stable")[:MAX_CANDIDATES]
    rows = np.column_stack([boxes[places[order]], classes[order], values[order]])
    kept = range(len(rows)) if how.kind in WITHOUT_SUPPRESSION else suppress(rows, how.max_iou)
    return rows[list(kept)[: how.max_detections]]


def suppress(rows: Floats, max_iou: float) -> list[int]:
    """Return the rows that stay, best first: none overlaps a better one of its class by more than `max_iou`.

    Rows are left, top, right, bottom, class and score, ordered by the score.
    """
    low = np.maximum(rows[:, None, :2], rows[None, :, :2])
    shared = np.prod(np.clip(np.minimum(rows[:, None, 2:4], rows[None, :, 2:4]) - low, 0, None), axis=2)
    areas = np.prod(rows[:, 2:4] - rows[:, :2], axis=1)
    # Compared without a division: areas are positive, and so is the union.
    repeated = shared > max_iou * (areas[:, None] + areas[None] - shared)
    repeated &= rows[:, None, 4] == rows[None, :, 4]
    left, kept = np.ones(len(rows), bool), []
    for index in range(len(rows)):
        if left[index]:
            kept.append(index)
            left &= ~repeated[index]
    return kept


def _fcos(how: BoxDecoding, outputs: NamedArrays, size: Size) -> tuple[Floats, Floats]:
    scores, distances = (outputs[name].astype(np.float64) for name in how.outputs)
    rows, columns = scores.shape[2:]
    cell = np.array([size[1] / columns, size[0] / rows])
    y, x = np.mgrid[:rows, :columns] + 0.5
    centers = np.stack([x, y], axis=2).reshape(-1, 2) * cell
    reach = np.exp(np.minimum(_by_place(distances), LARGEST_LOGARITHM))
    corners = centers - reach[:, :, :2] * cell, centers + reach[:, :, 2:] * cell
    return np.concatenate(corners, axis=2), expit(_by_place(scores))


def _ssd(how: BoxDecoding, outputs: NamedArrays, size: Size) -> tuple[Floats, Floats]:
    scores, boxes = (outputs[name].astype(np.float64) for name in how.outputs)
    return boxes * _scale(size), scores[:, :, 1:]


def _detr(how: BoxDecoding, outputs: NamedArrays, size: Size) -> tuple[Floats, Floats]:
    logits, boxes = (outputs[name].astype(np.float64) for name in how.outputs)
    scores = softmax(logits, axis=2)[:, :, :-1]
    only_best = scores == scores.max(axis=2, keepdims=True)  # a query is one object
    return _corners(boxes * _scale(size)), np.where(only_best, scores, -1)


def _yolov8(how: BoxDecoding, outputs: NamedArrays, size: Size) -> tuple[Floats, Floats]:
    values = outputs[how.scores].astype(np.float64)
    values = values if how.transposed else np.moveaxis(values, 1, 2)
    return _corners(values[:, :, :4]), values[:, :, 4:]


def _yolov5(how: BoxDecoding, outputs: NamedArrays, size: Size) -> tuple[Floats, Floats]:
    values = outputs[how.scores].astype(np.float64)
    return _corners(values[:, :, :4]), values[:, :, 4:5] * values[:, :, 5:]


def _yolo_nas(how: BoxDecoding, outputs: NamedArrays, size: Size) -> tuple[Floats, Floats]:
    scores, boxes = (outputs[name].astype(np.float64) for name in how.outputs)
    return boxes, scores


def _suppressed(how: BoxDecoding, outputs: NamedArrays, size: Size) -> tuple[Floats, Floats]:
    whole = outputs[how.boxes or how.scores].astype(np.float64)
    rows, columns = whole.reshape(len(whole), -1, whole.shape[-1]), how.columns.split()  # one box may have no own axis
    boxes = rows[:, :, [columns.index(edge) for edge in EDGES]] * (_scale(size) if how.shares else 1)
    if how.boxes is None or how.classes is None:
        scores, classes = (rows[:, :, columns.index(name)] for name in ("score", "class"))
    else:
        scores, classes = (outputs[n].astype(np.float64).reshape(rows.shape[:2]) for n in (how.scores, how.classes))
    numbers = np.rint(np.nan_to_num(classes, nan=-1)) - how.first_class
    if how.count is not None:
        numbers[np.arange(numbers.shape[1]) >= outputs[how.count].astype(np.float64).reshape(-1, 1)] = -1
    numbers[numbers >= MAX_CLASSES] = -1
    known = np.arange(1 + max(0, int(numbers.max(initial=0))))
    return boxes, np.where(numbers[:, :, None] == known, scores[:, :, None], -1)


FORMS: Mapping[str, Callable[[BoxDecoding, NamedArrays, Size], tuple[Floats, Floats]]] = {
    "fcos": _fcos,
    "ssd": _ssd,
    "detr": _detr,
    "yolov8": _yolov8,
    "yolov5": _yolov5,
    "yolo-nas": _yolo_nas,
    "suppressed": _suppressed,
}


def has_form(how: BoxDecoding, outputs: Mapping[str, Array], classes: int) -> str:
    """Return why outputs do not have the form that `how` names; an empty text where they have it."""
    if missing := [name for name in how.outputs if name not in outputs]:
        return f"the model has no output {missing[0]!r}; it has {sorted(outputs)}"
    shapes = [outputs[name].shape for name in how.outputs]
    scores, boxes = shapes[0], shapes[-1]
    good = {
        "fcos": len(scores) == 4 and scores[1] == classes and boxes == (scores[0], 4, *scores[2:]),
        "ssd": len(scores) == 3 and scores[2] == classes + 1 and boxes == (*scores[:2], 4),
        "detr": len(scores) == 3 and scores[2] == classes + 1 and boxes == (*scores[:2], 4),
        "yolov8": len(scores) == 3 and scores[2 if how.transposed else 1] == classes + 4,
        "yolov5": len(scores) == 3 and scores[2] == classes + 5,
        "yolo-nas": len(scores) == 3 and scores[2] == classes and boxes == (*scores[:2], 4),
        "suppressed": len(scores) > 1 and scores[-1] == len(how.columns.split())
        if how.boxes is None
        else boxes == (*scores, 4) and shapes[-2] == scores,
    }
    actual = ", ".join(f"{name} {list(outputs[name].shape)}" for name in how.outputs)
    return "" if good[how.kind] else f"decode.kind {how.kind!r} with {classes} classes does not fit {actual}"


def _by_place(grid: Floats) -> Floats:
    """Return values of shape (n, k, rows, columns) as (n, rows * columns, k)."""
    return np.moveaxis(grid.reshape(*grid.shape[:2], -1), 1, 2)


def _corners(boxes: Floats) -> Floats:
    """Return left, top, right and bottom from center x, center y, width and height."""
    half = boxes[:, :, 2:] / 2
    return np.concatenate([boxes[:, :, :2] - half, boxes[:, :, :2] + half], axis=2)


def _scale(size: Size) -> Floats:
    return np.array([size[1], size[0], size[1], size[0]], np.float64)
