"""Infer that outputs are maps of classes."""

from collections.abc import Iterator

import numpy as np

from gauntlet.core.arrays import Array
from gauntlet.problems.base import probabilities
from gauntlet.problems.output_evidence import (
    CLASS_NAMES,
    EMBEDDING_STEP,
    PRODUCTS,
    Evidence,
    InferredProblem,
    Size,
    are_decided,
    is_named,
    read_by,
    sums_to_one,
    trained_by_softmax,
)

MANY_MAPS = 5
"""So many maps of the size of the input are classes, whatever their values."""


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
            labels = tuple(map(str, range(max(2, count))))
            yield InferredProblem("segmentation", f"{shape} holds {what}: {why}", name, labels=labels)


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
