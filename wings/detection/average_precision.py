"""Average precision of detected boxes, as COCO defines it, and what it becomes when images are drawn again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, Floats

IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0, 1, 101)
MAX_DETECTIONS = 100
"""Boxes of one class and image that count, those with the highest scores."""
CHUNK_VALUES = 4_000_000


@dataclass(frozen=True)
class ClassMatches:
    """The detections of one class in all images, best score first, and how many objects of it each image has.

    `correct` and `ignored` tell for each IoU threshold whether a detection is matched with an object, or with one that
    does not count; both have shape (thresholds, detections). `score_changes` has what the score of a detection is above
    the sixth value of the object that it is matched with at the loosest threshold, NaN without one.
    """

    number: int
    images: npt.NDArray[np.int64]
    correct: npt.NDArray[np.bool_]
    ignored: npt.NDArray[np.bool_]
    objects: Floats
    score_changes: Floats

    def at_loosest(self) -> Self:
        """Return the matches at the first IoU threshold, 0.5, alone."""
        return replace(self, correct=self.correct[:1], ignored=self.ignored[:1])


def match_detections(predictions: Array, truth: Array) -> list[ClassMatches]:
    """Match boxes, shape (n, k, 6), with objects, shape (n, m, 6), for each class that has objects.

    A row is left, top, right and bottom edge, class (-1: no box), and the score, or for an object 1 if it counts and 0
    if not. As COCO's tool does: in the order of the scores, a box gets the object with the largest IoU that is left.
    """
    boxes, objects = (_rows_by_image(array) for array in (predictions, truth))
    counted = [rows[rows[:, 5] > 0] for rows in objects]
    classes = sorted({int(number) for rows in counted for number in rows[:, 4]})
    return [_match_class(number, boxes, objects) for number in classes]


def _rows_by_image(array: Array) -> list[Floats]:
    return [rows[rows[:, 4] >= 0] for rows in array.astype(np.float64)]


def _match_class(number: int, detections: Sequence[Floats], truths: Sequence[Floats]) -> ClassMatches:
    scores, images, correct, ignored, objects, changes = [np.zeros(0)], [np.zeros(0, np.int64)], [], [], [], []
    for image, (boxes, truth) in enumerate(zip(detections, truths, strict=True)):
        mine, own = boxes[boxes[:, 4] == number], truth[truth[:, 4] == number]
        mine = mine[np.argsort(-mine[:, 5], kind="stable")][:MAX_DETECTIONS]
        hits, skipped, weights = _match_image(mine, own)
        scores.append(mine[:, 5])
        images.append(np.full(len(mine), image))
        correct.append(hits)
        ignored.append(skipped)
        changes.append(mine[:, 5] - weights)
        objects.append(float((own[:, 5] > 0).sum()))
    order = np.argsort(-np.concatenate(scores), kind="stable")
    return ClassMatches(
        number,
        np.concatenate(images)[order],
        np.concatenate(correct, axis=1)[:, order],
        np.concatenate(ignored, axis=1)[:, order],
        np.array(objects),
        np.concatenate(changes)[order],
    )


def _match_image(boxes: Floats, truth: Floats) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], Floats]:
    """Return by threshold and box whether it is correct and whether it is ignored, and its object's sixth value."""
    counts, matched = truth[:, 5] > 0, np.full(len(boxes), np.nan)
    overlaps = _overlaps(boxes, truth[counts])
    # Of an object that does not count, a part is enough: its box may be that of a crowd.
    parts = _intersections(boxes, truth[~counts]) / np.maximum(_areas(boxes), 1e-300)[:, None]
    correct = np.zeros((len(IOU_THRESHOLDS), len(boxes)), bool)
    free = np.ones((len(IOU_THRESHOLDS), int(counts.sum())), bool)
    rows = np.arange(len(IOU_THRESHOLDS))
    for index in range(len(boxes) if free.size else 0):
        possible = np.where(free, overlaps[index], -1.0)
        best = possible.shape[1] - 1 - possible[:, ::-1].argmax(axis=1)  # of equal ones the last, as in COCO's tool
        correct[:, index] = possible[rows, best] >= IOU_THRESHOLDS
        free[rows, best] &= ~correct[:, index]
        if correct[0, index]:
            matched[index] = truth[counts][best[0], 5]
    ignored = parts.max(axis=1, initial=-1)[None] >= IOU_THRESHOLDS[:, None]
    return correct, ignored & ~correct, matched


def _overlaps(boxes: Floats, other: Floats) -> Floats:
    """Return the intersections over unions, shape (boxes, others)."""
    shared = _intersections(boxes, other)
    return np.asarray(shared / np.maximum(_areas(boxes)[:, None] + _areas(other)[None] - shared, 1e-300))


def _intersections(boxes: Floats, other: Floats) -> Floats:
    low = np.maximum(boxes[:, None, :2], other[None, :, :2])
    return np.asarray(np.prod(np.clip(np.minimum(boxes[:, None, 2:4], other[None, :, 2:4]) - low, 0, None), axis=2))


def _areas(boxes: Floats) -> Floats:
    return np.asarray(np.prod(np.clip(boxes[:, 2:4] - boxes[:, :2], 0, None), axis=1))


def mean_average_precision(matches: Sequence[ClassMatches], weights: Floats) -> Floats:
    """Return the mAP of images drawn `weights` times, shape (r, n), for each row; without objects 0.

    It is the mean over the IoU thresholds of the matches: mAP@[.5:.95] with all of them.
    """
    if not matches:
        return np.zeros(len(weights))
    size = max(1, CHUNK_VALUES // max(1, *(len(each.images) for each in matches)))
    parts = [_mean(matches, weights[start : start + size]) for start in range(0, len(weights), size)]
    return np.concatenate(parts)


def _mean(matches: Sequence[ClassMatches], weights: Floats) -> Floats:
    """Return the mean over the classes that occur in the drawn images, and over the thresholds."""
    objects = np.stack([weights @ each.objects for each in matches])
    values = np.stack([average_precisions(each, weights) for each in matches])
    occurs = objects > 0
    return np.asarray((values * occurs).sum(axis=0) / np.maximum(occurs.sum(axis=0), 1))


def average_precisions(matches: ClassMatches, weights: Floats) -> Floats:
    """Return a class's average precision, the mean over the IoU thresholds, for each row of weights, shape (r, n)."""
    objects = np.maximum(weights @ matches.objects, 1)[:, None]
    drawn, total = weights[:, matches.images], np.zeros(len(weights))
    for correct, ignored in zip(matches.correct, matches.ignored, strict=True):
        counted = drawn[:, ~ignored]
        hits = correct[~ignored]
        # Between two hits precision only falls, so its envelope over recall is known from the hits alone.
        right, seen = np.cumsum(counted[:, hits], axis=1), np.cumsum(counted, axis=1)[:, hits]
        precision = np.divide(right, seen, out=np.zeros_like(right), where=seen > 0)
        envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        reached = np.searchsorted(RECALLS, right / objects, side="right")
        total += (np.diff(reached, axis=1, prepend=0) * envelope).sum(axis=1) / len(RECALLS)
    return np.asarray(total / len(matches.correct))


def coco_scores(predictions: Array, truth: Array) -> dict[str, float]:
    """Return mAP@[.5:.95] as `map` and mAP@.5 as `map_50`, by faster-coco-eval; arrays as in `match_detections`.

    Without any object, both are 1 where nothing is detected, else 0.
    """
    from faster_coco_eval import COCO, COCOeval_faster

    objects, detections = list(_annotations(truth)), list(_annotations(predictions))
    for each in objects:
        each["iscrowd"] = int(each.pop("score") <= 0)
    if not detections or all(each["iscrowd"] for each in objects):
        value = float(not objects and not detections)
        return {"map": value, "map_50": value}
    names = sorted({each["category_id"] for each in (*objects, *detections)})
    images = [{"id": index + 1, "height": 1, "width": 1} for index in range(len(truth))]
    reference = COCO(
        {"images": images, "annotations": objects, "categories": [{"id": n, "name": str(n)} for n in names]},
        print_function=_silent,
    )
    tool = COCOeval_faster(reference, reference.loadRes(detections), "bbox", print_function=_silent, separate_eval=True)
    tool.evaluate()
    tool.accumulate()
    precision = tool.eval["precision"][:, :, :, 0, -1]  # thresholds, recalls, classes; all sizes, 100 boxes
    precision = precision[:, :, (precision > -1).all(axis=(0, 1))]
    return {"map": float(precision.mean()), "map_50": float(precision[0].mean())}


def _annotations(array: Array) -> Iterator[dict[str, Any]]:
    """Yield boxes as COCO's files have them; classes begin with 1 there."""
    number = 0
    for image, rows in enumerate(_rows_by_image(array)):
        for left, top, right, bottom, label, value in rows.tolist():
            number += 1
            width, height = right - left, bottom - top
            yield {
                "id": number,
                "image_id": image + 1,
                "category_id": int(label) + 1,
                "bbox": [left, top, width, height],
                "area": width * height,
                "score": value,
            }


def _silent(*_: object) -> None:
    pass
