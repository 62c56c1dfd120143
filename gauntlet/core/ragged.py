"""Outputs whose length depends on the sample, as arrays: shorter samples are padded at the end of each axis.

The padding is NaN for floats, the least number for signed integers and the largest for unsigned ones, -128 for
booleans, which become int8, and a character that no text has for strings.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, NamedArrays

NO_TEXT = "\uffff"


def joined(parts: Sequence[NamedArrays]) -> NamedArrays:
    """Join the outputs of calls, by name and of shape (n, ...), along the samples."""
    return {name: joined_samples([part[name] for part in parts]) for name in parts[0]}


def joined_samples(parts: Sequence[Array]) -> Array:
    """Join arrays of shape (n, ...) along the samples; an axis may be missing where every length of a part is 1."""
    axes = max(part.ndim for part in parts)
    parts = [part[:, None] if part.ndim < axes else part for part in parts]
    longest = tuple(map(max, zip(*(part.shape[1:] for part in parts), strict=True)))
    return np.concatenate([_padded(part, longest) for part in parts])


def paired(actual: Array, expected: Array) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
    """Return outputs in one shape, (n, ...), and for which samples both have the same lengths.

    They are returned as they are where none is ragged, or they have no shape in common. An axis may be missing where
    every length is 1.
    """
    equal = np.ones(len(expected), bool)
    missing = actual.ndim - expected.ndim
    if len(actual) != len(expected) or abs(missing) > 1 or not (is_ragged(actual) or is_ragged(expected)):
        return actual, expected, equal
    one, other = actual[:, None] if missing < 0 else actual, expected[:, None] if missing > 0 else expected
    longest = tuple(map(max, one.shape[1:], other.shape[1:]))
    one, other = _padded(one, longest), _padded(other, longest)
    return one, other, (_lengths(one) == _lengths(other)).all(axis=1)


def comparable(outputs: Sequence[Array], expected: Sequence[Array]) -> list[tuple[Array, Array]]:
    """Return pairs of outputs of one shape; none where an output is missing, or two have no shape in common.

    In ragged ones, 0 is the padding: what only one of both has is noise.
    """
    pairs = [paired(*pair)[:2] for pair in zip(outputs, expected, strict=False)]
    if len(outputs) != len(expected) or any(one.shape != other.shape for one, other in pairs):
        return []
    return [
        (_as_zeros(one), _as_zeros(other)) if is_ragged(one) or is_ragged(other) else (one, other)
        for one, other in pairs
    ]


def is_ragged(array: Array) -> bool:
    """Return whether samples, shape (n, ...), have different lengths, or none has any value."""
    last = array[(slice(None), *[-1] * (array.ndim - 1))] if array.size else array
    return array.ndim > 1 and (not array.size or not _is_value(last).all())


def without_padding(sample: Array) -> Array:
    """Return one sample, shape (...), without its padding."""
    return sample[tuple(map(slice, _lengths(sample[None])[0]))] if is_ragged(sample[None]) else sample


def _lengths(array: Array) -> npt.NDArray[np.int64]:
    """Return the length of each sample along each of its axes, shape (n, axes)."""
    filled, axes = _is_value(array), range(1, array.ndim)
    ends = np.zeros((len(array), len(axes)), np.int64)
    for axis in axes:
        used = filled.any(axis=tuple(other for other in axes if other != axis))
        ends[:, axis - 1] = (used * np.arange(1, array.shape[axis] + 1)).max(axis=1, initial=0)
    return ends


def _padded(array: Array, longest: tuple[int, ...]) -> Array:
    if array.shape[1:] == longest:
        return array
    array = array.astype(np.int8) if array.dtype.kind == "b" else array
    widths = [(0, 0), *((0, most - own) for most, own in zip(longest, array.shape[1:], strict=True))]
    return np.pad(array, widths, constant_values=_padding(array.dtype))


def _as_zeros(array: Array) -> Array:
    """Return an array with 0 in place of the padding."""
    return np.asarray(np.where(_is_value(array), array, np.zeros((), array.dtype)))


def _is_value(array: Array) -> npt.NDArray[np.bool_]:
    return ~np.isnan(array) if array.dtype.kind == "f" else np.asarray(array != _padding(array.dtype))


def _padding(dtype: np.dtype[np.generic]) -> float | int | str:
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min or np.iinfo(dtype).max)
    return {"f": np.nan, "U": NO_TEXT}.get(dtype.kind, -1)
