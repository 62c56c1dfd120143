"""What two files of one network predict alike, computed with NumPy alone: a check of the product from outside it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays

SHOWN_SCORE, MAX_IOU, SAME_IOU = 0.25, 0.5, 0.5
"""Least score of a box, overlap of two boxes of a class of which one is dropped, and overlap of the same box."""


class Agreement(NamedTuple):
    """Shares: the original's predictions that are kept, new detections, accuracy lost, lower end of its interval."""

    kept: float
    new: float
    loss: float
    proven_loss: float

    def __str__(self) -> str:
        return f"keeps {self.kept:.2%}, {self.new:.2%} new, loses {self.loss:.2%} (at least {self.proven_loss:.2%})"


def decoded(name: str, outputs: Sequence[Array]) -> Any:
    """Return predictions of a network: boxes by image, texts, classes by pixel or sample, labels, or neighbors."""
    first = outputs[0]
    if name.startswith("detection"):
        return [shown(rows) for rows in FORMS[name](outputs)]
    if name == "text":
        return [read(scores.argmax(axis=1)) for scores in first]
    if name == "multi-label":
        return first > 0
    if name == "embedding":
        return nearest(first / np.linalg.norm(first, axis=1, keepdims=True))
    if name == "classification-int64":
        return np.stack([first.argmax(axis=1), outputs[1]], axis=1)
    return first.argmax(axis=1)


def agreement(name: str, original: Any, other: Any, truth: Any) -> Agreement:
    """Compare predictions of another file with the original's, and both with the truth."""
    if name == "embedding":  # truth: the class of the nearest other sample is its own
        before, after = (same(name, truth, truth[nearest]) for nearest in (original, other))
    else:
        before, after = (same(name, truth, predicted) for predicted in (original, other))
    kept, boxes = same(name, original, other), name.startswith("detection")
    count = sum(map(len, original)) if boxes else len(original)
    new = (sum(map(len, other)) - kept.sum()) / count if boxes else 0
    lost = (before - after) * len(before) / (sum(map(len, truth)) if boxes else len(truth))
    error = lost.std() / len(lost) ** 0.5
    return Agreement(float(kept.sum() / count), float(new), float(lost.mean()), float(lost.mean() - 1.96 * error))


def same(name: str, wanted: Any, other: Any) -> Array:
    """Return how many predictions of each sample are as wanted: boxes, the share of pixels, or 1 for all or 0."""
    pairs = zip(wanted, other, strict=True)
    if name.startswith("detection"):
        return np.array([matches(*pair) for pair in pairs], np.float64)
    if name == "segmentation":
        return np.array([np.mean(a == b) for a, b in pairs])
    return np.array([np.all(a == b) for a, b in pairs], np.float64)


def steps_on_own_states(session: Any, rows: Array) -> NamedArrays:
    """Return the states before each step and the scores behind it, shape (steps, streams, ...), from a state of 0."""
    state, states, scores = np.zeros((rows.shape[1], 32), np.float32), [], []
    for row in rows:
        states.append(state)
        step, state = session.run(["y", "state_after"], {"x": row, "state": state})
        scores.append(step)
    return {"state": np.stack(states), "y": np.stack(scores)}


def read(best: Array) -> str:
    """Return the text of the best class by position; 0 is blank, and repetitions are one character."""
    return "".join(str(a - 1) for a, before in zip(best, [0, *best[:-1]], strict=True) if a not in (0, before))


def nearest(vectors: Array) -> Array:
    """Return the nearest other sample of each, by cosine similarity."""
    similar = vectors @ vectors.T
    np.fill_diagonal(similar, -1)
    return np.asarray(similar.argmax(axis=1))


def overlap(box: Array, others: Array) -> Array:
    """Return the intersection over union of a box with others, shape (k, 4)."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:4], others[:, 2:4])
    shared = np.clip(high - low, 0, None).prod(axis=1)
    areas = (others[:, 2:4] - others[:, :2]).prod(axis=1)
    return np.asarray(shared / ((box[2:4] - box[:2]).prod() + areas - shared))


def shown(rows: Array) -> Array:
    """Return the boxes that a person would see, best first; rows are left, top, right, bottom, score and class."""
    left = rows[rows[:, 4] >= SHOWN_SCORE]
    left, kept = left[np.argsort(-left[:, 4], kind="stable")], list[Array]()
    while len(left):
        best, left = left[0], left[1:]
        kept.append(best)
        left = left[(left[:, 5] != best[5]) | (overlap(best, left) <= MAX_IOU)]
    return np.array(kept).reshape(-1, 6)


def matches(original: Array, other: Array) -> int:
    """Return how many boxes of an image have a partner of their class; each box is a partner once, the best first."""
    free, count = other, 0
    for box in original:
        fits = (free[:, 5] == box[5]) * overlap(box, free)
        if len(free) and fits.max() >= SAME_IOU:
            free, count = np.delete(free, fits.argmax(), axis=0), count + 1
    return count


def _joined(outputs: Sequence[Array]) -> list[Array]:
    values = np.moveaxis(outputs[0], 1, 2).astype(np.float64)
    return _rows(values[:, :, :2] - values[:, :, 2:4] / 2, values[:, :, :2] + values[:, :, 2:4] / 2, values[:, :, 4:])


def _rows(low: Array, high: Array, scores: Array) -> list[Array]:
    """Return a row for each box and class with a score that is shown, by image."""
    images = []
    for image in range(len(low)):
        places, classes = np.nonzero(scores[image] >= SHOWN_SCORE)
        values = scores[image][places, classes]
        images.append(np.column_stack([low[image][places], high[image][places], values, classes]))
    return images


FORMS = {
    "detection-joined": _joined,
    "detection-apart": lambda outputs: _rows(outputs[0][:, :, :2], outputs[0][:, :, 2:], outputs[1]),
    "detection-suppressed": lambda outputs: [*outputs[0]],
}
