"""Infer that outputs are maps of classes, or scores of characters by position."""

from collections.abc import Iterator

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.problems.base import probabilities
from gauntlet.problems.box_decoding import Size
from gauntlet.problems.output_evidence import (
    CLASS_NAMES,
    EMBEDDING_STEP,
    PRODUCTS,
    Evidence,
    InferredProblem,
    are_decided,
    is_named,
    read_by,
    sums_to_one,
    trained_by_softmax,
)
from gauntlet.problems.text import by_position

MIN_POSITIONS, MIN_CHARACTERS, MAX_CHARACTERS = 4, 10, 20_000
FIRST_CHARACTER = 0x4E00
"""Placeholders of an unknown alphabet are consecutive characters of Unicode from this one on."""
MANY_MAPS = 5
"""So many maps of the size of the input are classes, whatever their values."""
BLANK_SHARE = 0.3
"""Of the positions, at least, at which a text recognizer sees no character."""


def infer_maps(known: Evidence, certain: bool) -> Iterator[InferredProblem]:
    """Yield the outputs that hold a class, or scores of classes, for each pixel of the input; see `infer_problem`."""
    axes, size = known.image_axes, known.image_size
    if axes is None or size is None:
        return
    for name, maps in known.outputs.items():
        whole = maps.squeeze(1) if maps.ndim == 4 and maps.shape[1] == 1 else maps
        if maps.dtype.kind in "iu" and whole.ndim == 3 and (whole.shape[1:] == size or certain):
            yield InferredProblem("segmentation", f"{name} holds the class of each pixel", name)
        if maps.dtype.kind != "f" or maps.ndim != 4 or not _is_fraction(maps, axes, size):
            continue
        count = maps.shape[axes[0]]
        shape = f"{name} {['n', *maps.shape[1:]]}".replace("'", "")
        if why := _why_maps(known, name, maps, axes[0]) or ("as requested" if certain else ""):
            what = "a mask" if count == 1 else f"maps of {count} classes"
            yield InferredProblem("segmentation", f"{shape} holds {what}: {why}", name)


def _is_fraction(maps: Array, axes: tuple[int, int, int], size: Size) -> bool:
    """Return whether maps have the aspect ratio of the input, and at most its size."""
    rows, columns = maps.shape[axes[1]], maps.shape[axes[2]]
    return bool(1 < rows <= size[0] and abs(size[0] / rows - size[1] / columns) < 0.05 * size[0] / rows)


def _why_maps(known: Evidence, name: str, maps: Array, axis: int) -> str:
    """Return why maps hold scores of classes; an empty text where they may be features or images."""
    count, size = maps.shape[axis], known.image_size
    if count > 1 and sums_to_one(maps, axis):
        return "they sum to 1 at each pixel"
    if read_by(known.graph, name, ("ArgMax", "Softmax")):
        return "read by an ArgMax or a Softmax"
    if name not in known.floats:
        return ""
    if count == 1:
        return "nearly all probabilities are close to 0 or 1" if known.real and are_decided(probabilities(maps)) else ""
    full = size is not None and maps.shape[1:] in ((count, *size), (*size, count))
    if (full and count >= MANY_MAPS) or count == known.classes:
        return "of the size of the input" if full else "as many as there are labels"
    if known.last(name) not in (*PRODUCTS, "Resize", "ConvTranspose"):
        return ""
    if is_named(name, CLASS_NAMES):
        return "the name is that of class scores"
    pixels = np.moveaxis(maps, axis, 3).reshape(-1, count)
    decided = known.real and count % EMBEDDING_STEP and trained_by_softmax(pixels)
    return "their sum hardly varies, as training by a softmax leaves logits" if decided else ""


def infer_texts(known: Evidence, certain: bool) -> Iterator[InferredProblem]:
    """Yield the outputs that hold scores of characters and of a blank by position; see `infer_problem`."""
    for name, scores in _sequences(known).items():
        if scores.ndim != 3 or scores.shape[2] - 1 > MAX_CHARACTERS:
            continue
        share = _best_share(scores, 0)
        if certain or (_may_be_text(known, name) and BLANK_SHARE <= share < 1):
            count = scores.shape[2]
            shape = ", ".join(map(str, ("n", *known.outputs[name].shape[1:])))
            what = f"{name} [{shape}] holds {count} scores at each position"
            reason = f"{what}, highest for class 0, the blank, at {share:.0%}; placeholders stand for the characters"
            labels = tuple(chr(FIRST_CHARACTER + index) for index in range(count - 1))
            yield InferredProblem("text", reason, name, labels=labels)


def texts_with_last_blank(known: Evidence) -> list[str]:
    """Return the outputs that would be texts if class 0 were the blank: the last class is."""
    scores = {name: array for name, array in _sequences(known).items() if array.ndim == 3 and _may_be_text(known, name)}
    return [name for name, array in scores.items() if BLANK_SHARE <= _best_share(array, array.shape[2] - 1) < 1]


def _sequences(known: Evidence) -> NamedArrays:
    return {name: by_position(array) for name, array in known.floats.items()}


def _best_share(scores: Array, index: int) -> float:
    """Return the share of positions at which a class has the highest score."""
    return float(np.mean(scores.argmax(axis=2) == index))


def _may_be_text(known: Evidence, name: str) -> bool:
    """Return whether the last axis of an output holds probabilities or logits of characters.

    Numbers as inputs are tokens of a text already; another output for the same positions tells that they are boxes.
    """
    scores = by_position(known.outputs[name])
    beside = any(other != name and array.shape[:2] == scores.shape[:2] for other, array in known.outputs.items())
    continuous = all(array.dtype.kind == "f" for array in known.inputs.values())
    if beside or not continuous or not known.real or scores.shape[1] < MIN_POSITIONS:
        return False
    probable = sums_to_one(scores, axis=2) or is_named(name, CLASS_NAMES)
    classes = scores.shape[2]
    return classes > MIN_CHARACTERS and (probable or trained_by_softmax(scores.reshape(-1, classes)))
