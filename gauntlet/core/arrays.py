"""Type aliases for NumPy arrays, conversion without a loss, random values of any element type, and tables."""

import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gauntlet.core.errors import StageError, one_line

Array = npt.NDArray[np.generic]
NamedArrays = dict[str, Array]
Floats = npt.NDArray[np.float64]

INDEX_LIMIT = 2
"""Integers may index a table of unknown length; 0 and 1 are valid in nearly every table."""


def as_array(value: Any) -> Array:
    """Return what other libraries have as arrays, on any device: tensors, lists, tables, images.

    Raises:
        StageError: when it is none, for example a list of lists of different lengths, or of a type that NumPy lacks.
    """
    try:
        tensor = value.detach().cpu() if hasattr(value, "cpu") else value  # PyTorch's
        array = np.asarray(tensor.float() if str(getattr(tensor, "dtype", "")) == "torch.bfloat16" else tensor)
    except (TypeError, ValueError, RuntimeError) as error:
        raise StageError(f"a {type(value).__name__} cannot be read as an array: {one_line(error)}") from error
    if array.dtype.kind != "O":
        return array
    if array.ndim and all(isinstance(value, str) for value in array.flat):
        return array.astype(np.str_)
    raise StageError(f"a {type(value).__name__} is no array of numbers or texts. Fix: convert it with numpy.asarray")


def read_arrays(path: Path) -> NamedArrays:
    """Return the arrays of an `.npz` file; raise what NumPy does where it is none, or holds objects."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def write_arrays(path: Path, arrays: Mapping[str, npt.ArrayLike]) -> None:
    """Write arrays to an `.npz` file, under any names: `numpy.savez` refuses `file` and `allow_pickle`."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)


def in_shape(array: Array, shape: Sequence[int | str | None] | None) -> Array:
    """Return samples, shape (n, ...), in the shape that an input declares, where only one way leads there.

    Axes of length 1 are added or left out, the values of a sample are laid out in their order, or the channels of
    images become the first or the last axis. Else, the samples are returned as they are.
    """
    own, wanted = array.shape[1:], tuple(shape or ())[1:]
    if shape is None or not array.ndim or fits_shape(own, wanted) or fits_shape(own, shape):
        return array
    if len(own) == len(wanted):
        moves = ((0, 3, 1, 2), (0, 2, 3, 1)) if len(own) == 3 and {own[0], own[2]} & {1, 3} else ()
        moved = (array.transpose(axes) for axes in moves)
        return next((images for images in moved if fits_shape(images.shape[1:], wanted)), array)
    fixed = [axis for axis in wanted if isinstance(axis, int)]
    if len(fixed) == len(wanted):
        return array.reshape(len(array), *fixed) if math.prod(own) == math.prod(fixed) else array
    lengths = [axis for axis in own if axis != 1]
    if not fits_shape(lengths, [axis for axis in wanted if axis != 1]):
        return array
    rest = iter(lengths)
    return array.reshape(len(array), *[1 if axis == 1 else next(rest) for axis in wanted])


def fits_shape(lengths: Sequence[int], shape: Sequence[int | str | None], skip: int = 0) -> bool:
    """Return whether a shape with open axes allows lengths, without the first `skip` axes."""
    pairs = [*zip(lengths, shape, strict=False)][skip:]
    return len(lengths) == len(shape) and all(not isinstance(axis, int) or axis == length for length, axis in pairs)


def dtype_name(array: Array) -> str:
    """Return the name of the element type, as signatures have it: `str` for texts of any length."""
    return "str" if array.dtype.kind == "U" else array.dtype.name


def require_range(name: str, array: Array, dtype: npt.DTypeLike) -> None:
    """Raise StageError if integers, or booleans, are outside the range of the type that they are converted to.

    NumPy would wrap them: 399 becomes 143 as uint8. Other kinds of arrays and of types have no such range.
    """
    kind = np.dtype(dtype)
    if array.dtype.kind not in "iub" or kind.kind not in "iub" or np.can_cast(array.dtype, kind) or not array.size:
        return
    low, high = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
    least, most = int(array.min()), int(array.max())
    if least < low or most > high:
        raise StageError(
            f"input '{name}' takes {kind.name}, {low} to {high}; the samples are {array.dtype.name} from {least} to "
            f"{most}. Fix: scale or clip the samples as the model expects them"
        )


def random_values(dtype: np.dtype[np.generic], shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return normally distributed floats, booleans, or integers below `INDEX_LIMIT`; `ValueError` otherwise."""
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind in "iub":
        return rng.integers(0, INDEX_LIMIT, shape).astype(dtype)
    raise ValueError(f"cannot generate random values of type {dtype}; supported: floats, integers and booleans")


def data_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows as a pandas DataFrame, or as they are where pandas is not installed."""
    try:
        import pandas as pd
    except ModuleNotFoundError:
        return list(rows)
    return pd.DataFrame.from_records(rows)


def columns_of(samples: Any, fitted: Sequence[str]) -> list[Any]:
    """Return the columns of a table that a model was fitted on, in that order; none of what has none of them.

    LightGBM writes underscores for spaces. Raise StageError where some are missing.
    """
    by_name = {str(name).replace(" ", "_"): name for name in getattr(samples, "columns", ())}
    chosen = [by_name.get(name.replace(" ", "_")) for name in fitted]
    missing = [name for name, column in zip(fitted, chosen, strict=True) if column is None]
    if missing and len(missing) < len(fitted):
        raise StageError(f"no column {missing[0]!r}, on which the model was fitted; found: {', '.join(by_name)}")
    return [] if missing else chosen
