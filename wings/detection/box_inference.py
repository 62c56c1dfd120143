"""Infer the form of a detector's outputs from their shapes and values."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.signature import BoxDecoding
from gauntlet.metrics.error_metrics import within_unit
from gauntlet.problems.output_evidence import Evidence, InferredProblem, Size, sums_to_one
from wings.detection.box_decoding import decode_boxes
from wings.detection.suppressed_inference import CORNERS, BoxForm, infer_suppressed

SHOWN_SCORE = 0.25
"""The default confidence of Ultralytics' predictions."""
MAX_STRIDE = 64
"""Pixels of the input in a cell of a grid."""


def infer_boxes(outputs: NamedArrays, size: Size) -> BoxForm | None:
    """Return the form of a detector's outputs, shape (n, ...), for inputs of a height and width; None for others.

    `shown_score` is 0.25, or half of the highest score where no sample has a detection with that one.
    """
    used = {name: array for name, array in outputs.items() if array.dtype.kind == "f" and array.size}
    floats = {name: array for name, array in used.items() if np.isfinite(array).all()}
    form = next(
        (form for forms in (infer_suppressed, _apart, _together) for form in forms(outputs, floats, size)), None
    )
    if form is None:
        return None
    best = float(decode_boxes(form.decode.replace(min_score=0.0), outputs, size)[:, :, 5].max(initial=0))
    if best >= SHOWN_SCORE:
        return replace(form, decode=form.decode.replace(shown_score=SHOWN_SCORE))
    threshold = float(f"{best / 2:.1g}")
    decode = form.decode.replace(shown_score=threshold, min_score=min(form.decode.min_score, threshold))
    reason = f"{form.reason}; no sample has a detection with a score of {SHOWN_SCORE:g}, so {threshold:g} counts"
    return replace(form, decode=decode, reason=reason)


def _together(outputs: NamedArrays, floats: NamedArrays, size: Size) -> Iterator[BoxForm]:
    """Yield the forms that one output has."""
    for name, array in floats.items():
        if array.ndim != 3:
            continue
        text = f"{name} [n, {array.shape[1]}, {array.shape[2]}]"
        for transposed, rows in ((False, np.moveaxis(array, 1, 2)), (True, array)):
            numbers = rows.shape[2]
            if numbers < 5 or not _are_pixel_boxes(rows, size) or not within_unit(rows[:, :, 4:]):
                continue
            if transposed and numbers > 5 and _scores_are_given_an_object(rows):
                what = (
                    f"{text} holds rows of a box in pixels, the probability of an object and of {numbers - 5} classes"
                )
                yield BoxForm(BoxDecoding(kind="yolov5", scores=name), numbers - 5, what)
            what = f"{text} holds 4 {'columns' if transposed else 'rows'} of boxes in pixels and {numbers - 4} of "
            decode = BoxDecoding(kind="yolov8", scores=name, transposed=transposed)
            yield BoxForm(decode, numbers - 4, f"{what}probabilities")


def _apart(_: NamedArrays, floats: NamedArrays, size: Size) -> Iterator[BoxForm]:
    """Yield the forms in which boxes have an output of their own."""
    for name, boxes in floats.items():
        if boxes.ndim == 3 and boxes.shape[2] == 4:
            for other, scores in floats.items():
                if other != name and scores.ndim == 3 and scores.shape[:2] == boxes.shape[:2]:
                    yield from _rows_apart(name, boxes, other, scores, size)
        if boxes.ndim == 4 and boxes.shape[1] == 4:
            grids = (o for o, a in floats.items() if a.ndim == 4 and a.shape[2:] == boxes.shape[2:] and a.shape[1] != 4)
            for other in grids:
                if _are_grids(boxes, floats[other], size):
                    what = f"{other} holds logits for the cells of a grid, {name} logarithms of four distances"
                    yield BoxForm(BoxDecoding(kind="fcos", scores=other, boxes=name), floats[other].shape[1], what)


def _rows_apart(name: str, boxes: Array, other: str, scores: Array, size: Size) -> Iterator[BoxForm]:
    """Yield `yolo-nas`, whose boxes are in pixels, and `ssd` and `detr`, whose boxes are shares of the image."""
    low, high = np.split(boxes.astype(np.float64), 2, axis=2)
    if within_unit(scores) and _are_pixel_boxes(np.concatenate([(low + high) / 2, high - low], axis=2), size):
        what = f"{other} holds {scores.shape[2]} probabilities for each box, and {name} edges in pixels"
        yield BoxForm(BoxDecoding(kind="yolo-nas", scores=other, boxes=name), scores.shape[2], what)
    if boxes.min() < -1 or boxes.max() > 2 or scores.shape[2] < 2:
        return
    best, classes = scores.argmax(axis=2), scores.shape[2] - 1
    if _share_of_corners(boxes) >= CORNERS and sums_to_one(scores, axis=2) and np.mean(best == 0) > 0.5:
        what = (
            f"{other} holds probabilities, mostly of class 0, the background, and {name} edges as shares of the image"
        )
        yield BoxForm(BoxDecoding(kind="ssd", scores=other, boxes=name), classes, what)
    elif within_unit(boxes) and not sums_to_one(scores, axis=2) and np.mean(best == classes) > 0.5:
        what = f"{other} holds logits, mostly highest for the last class, no object, and {name} boxes within 0 and 1"
        yield BoxForm(BoxDecoding(kind="detr", scores=other, boxes=name), classes, what)


def _are_pixel_boxes(rows: Array, size: Size) -> bool:
    """Return whether rows, shape (n, boxes, 4 or more), begin with center x, center y, width and height in pixels.

    The centers of a detector's boxes, before the suppression, lie all over the image.
    """
    x, y, width, height = np.moveaxis(rows[:, :, :4].astype(np.float64), 2, 0)
    axes = ((x, size[1]), (y, size[0]))
    inside = all(-0.5 * length <= center.min() and center.max() <= 1.5 * length for center, length in axes)
    spread = all(np.ptp(center) >= 0.5 * length for center, length in axes)
    return bool(inside and spread and width.min() >= 0 and height.min() >= 0 and _share_of_corners(rows) < CORNERS)


def _are_grids(boxes: Array, scores: Array, size: Size) -> bool:
    """Return whether maps are an `fcos` head's: few cells with an object, and distances of less than the image."""
    rows, columns = boxes.shape[2:]
    strides = size[0] / rows, size[1] / columns
    fits = strides[0] == strides[1] and 1 < strides[0] <= MAX_STRIDE
    return bool(
        fits
        and np.median(scores.astype(np.float64)) < 0
        and boxes.min() < 0
        and boxes.max() < np.log(max(rows, columns)) + 1
    )


def _scores_are_given_an_object(rows: Array) -> bool:
    """Return whether column 4 is the probability of an object, and the others those of a class given one.

    Where column 4 is highest, a class given an object is probable, too. If it is the first class, the others are not.
    """
    flat = rows.reshape(-1, rows.shape[2]).astype(np.float64)
    top = flat[flat[:, 4] >= 0.5 * flat[:, 4].max()]
    return bool(np.mean(top[:, 5:].max(axis=1)) > 0.5 * np.mean(top[:, 4]))


def _share_of_corners(rows: Array) -> float:
    wide = rows.astype(np.float64)
    return float(np.mean((wide[:, :, 2:4] > wide[:, :, :2]).all(axis=2)))


def infer_detection(known: Evidence, certain: bool) -> Iterator[InferredProblem]:
    """Yield the form of a detector's outputs; of random samples only where the problem is certain."""
    size = known.image_size
    form = infer_boxes(known.outputs, size) if size and (known.real or certain) else None
    if form is not None:
        labels = tuple(map(str, range(form.classes)))
        yield InferredProblem("detection", form.reason, form.decode.scores, form.decode, labels, form.min_classes)


def explain_undecided(known: Evidence) -> str:
    """Return why the outputs are compared as arrays, where only their shapes are those of a detector."""
    if empty := [name for name, array in known.outputs.items() if not array.size]:
        return f"{empty[0]} is empty for every sample: bring samples that show something, prepared as the model expects"
    if known.real or not next(infer_detection(known, True), None):
        return ""
    reason = "the shapes are those of a detector, which random samples do not prove"
    return f"{reason}; bring real ones with --data, or name it with --task detection"
