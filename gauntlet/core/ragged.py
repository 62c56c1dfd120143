"""Outputs whose length depends on the sample: arrays in which shorter samples are padded at the end of each axis.

The padding is NaN for floats, the least number for signed integers and booleans, which become int8, the largest for
unsigned ones, and a character that no text has for strings.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, NamedArrays


def joined(parts: Sequence[NamedArrays]) -> NamedArrays:
    """Join the outputs of calls, by name and of shape (n, ...), along the samples."""
    return {name: joined_samples([part[name] for part in parts]) for name in parts[0]}


def joined_samples(parts: Sequence[Array]) -> Array:
    """Join arrays of shape (n, ...) along the samples; an axis may be missing where every length of a part is 1."""
    axes = max(part.ndim for part in parts)
    parts = [part[:, None] if part.ndim < axes else part for part in parts]
    longest = tuple(map(max, zip(*(part.shape[1:] for part in parts), strict=True)))
    return np.concatenate([_padded(part, longest) for part in parts])


def paired(actual: Array, expected: Array) -> tuple[Array, Array, npt.NDArray[np.bool_] | None]:
    """Return outputs, shape (n, ...), in one shape, and for which samples both have the same lengths.

    They are returned as they are, and None, where none is ragged, or they have no shape in common. NaN at the end of
    an output is no padding where the expected one has the same shape, and none.
    """
    ragged = is_ragged(expected) or (actual.shape != expected.shape and is_ragged(actual))
    if not ragged or len(actual) != len(expected) or abs(actual.ndim - expected.ndim) > 1:
        return actual, expected, None
    one, other = np.split(joined_samples([actual, expected]), 2)
    return one, other, (_lengths(one) == _lengths(other)).all(axis=1)


def comparable(outputs: Sequence[Array], expected: Sequence[Array]) -> list[tuple[Array, Array]]:
    """Return pairs of outputs in one shape; none where one is missing or has another shape.

    Floats of a sample with another length than expected are 0, so that all of them are noise.
    """
    pairs = [paired(*pair) for pair in zip(outputs, expected, strict=False)]
    if len(outputs) != len(expected) or any(one.shape != other.shape for one, other, _ in pairs):
        return []
    for one, other, alike in pairs:
        if alike is not None and other.dtype.kind == "f":
            one[~alike], other[~alike] = 0, np.nan_to_num(other[~alike])
    return [(one, other) for one, other, _ in pairs]


def is_ragged(array: Array) -> bool:
    """Return whether samples, shape (n, ...), have different lengths, or none has any value."""
    return array.ndim > 1 and not (array.size and _is_value(array.reshape(len(array), -1)[:, -1]).all())


def without_padding(sample: Array) -> Array:
    """Return one sample, shape (...), without its padding."""
    return sample[tuple(map(slice, _lengths(sample[None])[0]))] if is_ragged(sample[None]) else sample


def _lengths(array: Array) -> npt.NDArray[np.int64]:
    """Return the length of each sample along each of its axes, shape (n, axes)."""
    filled, axes = _is_value(array), range(1, array.ndim)
    used = [filled.any(axis=tuple(other for other in axes if other != axis)) for axis in axes]
    return np.stack([(u * np.arange(1, u.shape[1] + 1)).max(axis=1, initial=0) for u in used], axis=1)


def _padded(array: Array, longest: tuple[int, ...]) -> Array:
    if array.shape[1:] == longest:
        return array
    array = array.astype(np.int8) if array.dtype.kind == "b" else array
    widths = [(0, 0), *((0, most - own) for most, own in zip(longest, array.shape[1:], strict=True))]
    return np.pad(array, widths, constant_values=_padding(array))


def _is_value(array: Array) -> npt.NDArray[np.bool_]:
    return ~np.isnan(array) if array.dtype.kind == "f" else np.asarray(array != _padding(array))


def _padding(array: Array) -> float | int | str:
    if array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype.name)
        return limits.min or limits.max
    return np.nan if array.dtype.kind == "f" else "\uffff" if array.dtype.kind == "U" else -1
