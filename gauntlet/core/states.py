"""States of a streaming model: outputs that come back as inputs of its next call."""

import re
from collections.abc import Collection, Mapping

from gauntlet.core.arrays import Array

States = tuple[tuple[str, str], ...]
"""Pairs of an input and the output that is its value in the next call."""
SampleType = tuple[str, tuple[int, ...]]
"""NumPy's kind of the type, and the shape of one sample."""

MARKERS = re.compile("in|out|input|output|new|next|prev|previous|old|last|final|init|initial|args?|identity")
"""Words that tell a state before a call from the same state after it, or that tensors without a name have."""
STATE_WORDS = re.compile("[hc]x?|hidden|cell|states?|mem|memory|cache|carry|context|ctx|rnn|lstm|gru|buffer|history")
"""Words of which the name of a state has one, where the name of the output does not say that it is one."""
ENDINGS = (("", ""), ("0", "n"), ("i", "o"))
"""Of an input and of its output, as in `h0` and `hn`."""
SUM = re.compile(r"\w+(\s*\+\s*\w+)+")
"""The name of an axis that is as long as others together, as that of a mask over a cache and what follows it."""


def sample_types(arrays: Mapping[str, Array]) -> dict[str, SampleType]:
    """Return the type of one sample of each array, given with shape (n, ...)."""
    return {name: (array.dtype.kind, array.shape[1:]) for name, array in arrays.items()}


def states_by_name(inputs: Mapping[str, SampleType], outputs: Mapping[str, SampleType]) -> States:
    """Return the pairs whose names say so: `h` and `hn`, `new_h` or `h_out`; `past.0` and `present.0`.

    Both are of one type, but a cache may be returned longer along one axis.
    """
    pairs: dict[str, str] = {}
    for before, after in ENDINGS:
        for name in inputs:
            stems = _stems(name, before)
            possible = [
                output
                for output in outputs
                if continues(name, inputs[name], outputs[output])
                and output not in pairs.values()
                and stems & _stems(output, after)
            ]
            if name not in pairs and len(possible) == 1:
                pairs[name] = possible[0]
    if len(outputs) == 1:
        pairs = {name: output for name, output in pairs.items() if has_state_word(name)}
    # Where no input is left for data, they are no states: an autoencoder returns its input, too.
    return tuple(pairs.items()) if inputs.keys() - pairs.keys() else ()


def continues(name: str, before: SampleType, after: SampleType | None) -> bool:
    """Return whether an output may be the next value of an input of this name."""
    if after is None or before[0] != after[0] or len(before[1]) != len(after[1]):
        return False
    growth = [returned - taken for taken, returned in zip(before[1], after[1], strict=True) if returned != taken]
    return not growth or (len(growth) == 1 and growth[0] > 0 and has_state_word(name))


def axis_terms(axis: str, lengths: Mapping[str, int]) -> list[str]:
    """Return the axes and numbers whose sum an axis is by its name; none where it is no sum of known ones."""
    terms = [term.strip() for term in axis.split("+")] if SUM.fullmatch(axis) else []
    return terms if all(term in lengths or term.isdecimal() for term in terms) else []


def states_by_shape(
    inputs: Mapping[str, SampleType],
    outputs: Mapping[str, SampleType],
    named: States,
    primary: str,
    fixed: Collection[str],
) -> States:
    """Return `named` and each further pair of floats that are the only input and the only output of their type.

    Several, as the two states of an LSTM, are paired in their order where the outputs have no names but numbers. The
    `primary` output is a prediction, and no state. `fixed` are the inputs without an open axis but the batch; the
    others are no states, nor is an input whose name says something else: a network may add `bias` to what it returns.
    """
    pairs = dict(named)
    left = {name: kind for name, kind in inputs.items() if kind[0] == "f" and name not in pairs}
    returned = {name: kind for name, kind in outputs.items() if name != primary and name not in pairs.values()}
    for kind in dict.fromkeys(left.values()):
        before, after = ([name for name, other in each.items() if other == kind] for each in (left, returned))
        in_order = len(before) == len(after) and (len(after) == 1 or not any(map(_stems, after)))
        if in_order and all(name in fixed and (has_state_word(name) or not _stems(name)) for name in before):
            pairs |= zip(before, after, strict=True)
    return tuple(pairs.items()) if inputs.keys() - pairs.keys() else named


def has_state_word(name: str) -> bool:
    """Return whether the name of an input says that it is a state, or a cache."""
    return any(map(STATE_WORDS.fullmatch, (word for stem in _stems(name, "0") for word in stem)))


def _stems(name: str, ending: str = "") -> set[tuple[str, ...]]:
    """Return the words of a name without its markers, and also without an ending; none that has no letters."""
    text = re.sub(r"(past|present)(_key_values)?", "cache", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    words = tuple(word for word in re.findall(r"[a-z]+|\d+", text) if not MARKERS.fullmatch(word))
    stems = {words}
    if ending and words and words[-1].endswith(ending):
        rest = words[-1].removesuffix(ending)
        stems.add((*words[:-1], rest) if rest else words[:-1])
    return {stem for stem in stems if any(word.isalpha() for word in stem)}
