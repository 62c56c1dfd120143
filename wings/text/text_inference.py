"""Infer that outputs are scores of characters by position."""

from collections.abc import Iterator

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.problems.output_evidence import (
    CLASS_NAMES,
    Evidence,
    InferredProblem,
    is_named,
    sums_to_one,
    trained_by_softmax,
)
from wings.text.text import by_position

MIN_POSITIONS, MIN_CHARACTERS, MAX_CHARACTERS = 4, 10, 20_000
FIRST_CHARACTER = 0x4E00
"""Placeholders of an unknown alphabet are consecutive characters of Unicode from this one on."""
BLANK_SHARE = 0.3
"""Of the positions, at least, at which a text recognizer sees no character."""


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
    for name, array in known.outputs.items() if certain else ():
        if (array.dtype.kind in "iu" and array.ndim == 2 and known.classes) or array.dtype.kind == "U":
            yield InferredProblem("text", f"{name} holds decoded texts", name)


def explain_undecided(known: Evidence) -> str:
    """Return why the outputs are compared as arrays, where the last class is the blank, and not the first."""
    scores = {name: array for name, array in _sequences(known).items() if array.ndim == 3 and _may_be_text(known, name)}
    last_blank = (name for name, array in scores.items() if BLANK_SHARE <= _best_share(array, array.shape[2] - 1) < 1)
    name = next(last_blank, None)
    return f"{name} looks like texts whose blank is the last class; only the first can be" if name else ""


def _sequences(known: Evidence) -> NamedArrays:
    return {name: by_position(array) for name, array in known.floats.items() if array.size}


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
