"""Golden inputs at other lengths of the axes that a brought model leaves open, besides the batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import Field

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.report import Check
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.states import axis_terms, has_state_word
from gauntlet.datasets.golden import Predict, first_samples
from gauntlet.datasets.splits import Split
from tasks.train.facts import varies

SAMPLES, FEWEST = 32, 4
"""Samples of a length. Longer ones are fewer, because they cost more."""
IMAGE_AXES = {"NCHW": (2, 3), "NHWC": (1, 2)}

OpenAxes = dict[str, dict[int, str]]
"""Input -> axis of its array of samples -> name."""
Lengths = Annotated[
    tuple[dict[str, Annotated[int, Field(ge=0, le=65536)]], ...],
    Field(description="lengths of open axes by name, one set a size"),
]


@dataclass(frozen=True)
class OtherLengths:
    """Inputs by case, named after the lengths (`tokens=8`), and the cases that the source itself refuses."""

    cases: dict[str, NamedArrays] = field(default_factory=dict)
    refused: tuple[str, ...] = ()

    def checks(self) -> tuple[Check, ...]:
        """Return a warning where every other length is refused; none for a model without open axes."""
        if not self.cases and not self.refused:
            return ()
        judged = f"judged at {'; '.join(self.cases)}" if self.cases else "judged at the length of the data alone"
        refused = f"; the model itself refuses {'; '.join(self.refused)}" if self.refused else ""
        detail = f"the open axes are {judged}{refused}"
        fix = "" if self.cases else "export the model with fixed axes, or with axes that take further lengths"
        return (Check.of("train.unjudged_axes", int(not self.cases), "==", 0, detail, fix, severity="warning"),)


def cut_samples(predict: Predict, test: Split, signature: Signature, named: Lengths = ()) -> OtherLengths:
    """Return the first test samples, cut to a half, a quarter and 1 along each open axis but the batch, and doubled.

    All open axes change in proportion, or one by one where the source refuses that. One is also halved alone, if the
    source takes that: in proportion, height and width of squares stay the same. Of images, a part smaller than a half
    shows too little. Caches are also emptied. The source must give finite outputs for a length, as it does for the
    whole samples. Lengths that are `named` take the place of these. Samples that are too short go on as the one before,
    and images are resized by nearest neighbor. Raise `StageError` where one of their axes is unknown, or the source
    fails.
    """
    real = test.take(slice(0, SAMPLES))
    axes = _open_axes(signature.inputs, real, signature.layout)
    if named:
        return _named_cuts(predict, real, axes, named, (None,) if signature.layout in IMAGE_AXES else (0, 0.5, 1))
    finite = _finite_outputs(predict, real) or set()
    known = _all_lengths(axes, real)
    lengths = {axis: length for axis, length in known.items() if not axis_terms(axis, known)}
    is_image = signature.layout in IMAGE_AXES
    cases: dict[str, NamedArrays] = {}
    refused: list[str] = []
    for scale in (1 / 2, 2) if is_image else (1 / 2, 1 / 4, 1 / max([1, *lengths.values()]), 2):
        first, joint = not cases and not refused, False
        places = (None,) if is_image and scale > 1 else (0.5, 0, 1) if is_image else (0, 0.5, 1)
        for chosen in _groups(lengths):
            new = {axis: max(1, int(lengths[axis] * scale)) for axis in chosen}
            some = first_samples(real, max(FEWEST, int(SAMPLES / max(1, scale) ** len(chosen))))
            title = ", ".join(f"{axis}={length}" for axis, length in new.items())
            if all(new[axis] == lengths[axis] for axis in chosen) or title in cases or title in refused:
                continue
            inputs = _varied_cut(some, axes, new, places)
            accepted = _finite_outputs(predict, inputs)
            if accepted is not None and accepted >= finite:
                cases[title] = inputs
                joint = joint or len(chosen) == len(lengths)
                if joint and (len(chosen) == 1 or not first):
                    break  # what remains are the axes one by one
            elif not joint:
                refused.append(title)
    empty = {axis: 0 for axis in lengths if all(has_state_word(name) for name in axes if axis in axes[name].values())}
    inputs = _varied_cut(real, axes, empty, (0,))
    if empty and (_finite_outputs(predict, inputs) or set()) >= finite:
        cases[", ".join(f"{axis}=0" for axis in empty)] = inputs
    return OtherLengths(cases, tuple(refused))


def _named_cuts(
    predict: Predict, real: NamedArrays, axes: OpenAxes, named: Lengths, places: Sequence[float | None]
) -> OtherLengths:
    known, cases = _all_lengths(axes, real), dict[str, NamedArrays]()
    for new in named:
        title = ", ".join(f"{axis}={length}" for axis, length in new.items())
        if unknown := [axis for axis in new if axis not in known]:
            available = ", ".join(known) or "none"
            raise StageError(f"train.lengths: unknown open axis {unknown[0]!r}; available: {available}")
        cases[title] = _varied_cut(real, axes, new, places)
        if _finite_outputs(predict, cases[title]) is None:
            raise StageError(f"train.lengths: the model fails at {title}. Fix: name every axis that changes")
    return OtherLengths(cases)


def _all_lengths(axes: OpenAxes, real: NamedArrays) -> dict[str, int]:
    return {axis: real[name].shape[place] for name, places in axes.items() for place, axis in places.items()}


def _open_axes(inputs: Sequence[TensorSpec], real: NamedArrays, layout: str) -> OpenAxes:
    """Return the open axes but the batch; each sample may be a whole input, whose axes are then all considered."""
    axes: OpenAxes = {}
    for spec in inputs:
        whole = real[spec.name].ndim - len(spec.shape) if spec.name in real else -1
        if whole not in (0, 1):  # the samples do not fit, which is reported where they are fed
            continue
        possible = range(1, real[spec.name].ndim)
        if layout in IMAGE_AXES and len(spec.shape) == 4:
            possible = range(IMAGE_AXES[layout][0] + whole, IMAGE_AXES[layout][1] + whole + 1)
        named = {place: spec.shape[place - whole] for place in possible}
        axes[spec.name] = {place: axis for place, axis in named.items() if isinstance(axis, str)}
    return axes


def _groups(lengths: dict[str, int]) -> Iterator[tuple[str, ...]]:
    """Yield the axes to cut at once: all, then one by one."""
    if lengths:
        yield tuple(lengths)
    if len(lengths) > 1:
        yield from ((axis,) for axis in lengths)


def _varied_cut(real: NamedArrays, axes: OpenAxes, new: dict[str, int], places: Sequence[float | None]) -> NamedArrays:
    """Return the cut at the first place where the samples differ as the whole ones do.

    A place is from 0, the beginning, to 1, the end; with None, the samples are resized.

    Texts often begin, or end, with the same token.
    """
    now = _all_lengths(axes, real) | new
    sums = {axis: [now[term] if term in now else int(term) for term in axis_terms(axis, now)] for axis in now}
    new = {axis: sum(parts) for axis, parts in sums.items() if parts} | new
    cuts = [{name: _cut(array, axes.get(name, {}), new, at) for name, array in real.items()} for at in places]
    varied = [name for name, array in real.items() if varies(array)]
    return next((cut for cut in cuts if all(varies(cut[name]) for name in varied)), cuts[0])


def _cut(array: Array, axes: dict[int, str], new: dict[str, int], at: float | None) -> Array:
    for place, axis in axes.items():
        length = new.get(axis, int(array.shape[place]))
        if at is None:
            indices = ((np.arange(length) + 0.5) * array.shape[place] / max(length, 1)).astype(np.intp)
        else:
            indices = np.arange(length) + round(at * (array.shape[place] - length))
        if length and not array.shape[place]:  # an empty cache
            array = np.zeros((*array.shape[:place], length, *array.shape[place + 1 :]), array.dtype)
        if at is not None and length > array.shape[place]:  # repeated alone, a sample would have the same mean
            array = np.concatenate([array, np.roll(array, 1, axis=0)], place)
        array = array.take(indices, place, mode="wrap")
    return array


def _finite_outputs(predict: Predict, inputs: NamedArrays) -> set[str] | None:
    """Return the float outputs without NaN and infinity; None where the source fails on a sample."""
    try:
        outputs = predict(inputs)
    except StageError:
        return None
    return {name for name, array in outputs.items() if array.dtype.kind == "f" and np.isfinite(array).all()}
