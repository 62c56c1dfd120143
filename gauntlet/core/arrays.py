"""Type aliases for NumPy arrays, conversion without a loss, random values of any element type, and tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gauntlet.core.errors import StageError, one_line

Array = npt.NDArray[np.generic]
NamedArrays = dict[str, Array]

INDEX_LIMIT = 2
"""Integers may index a table of unknown length; 0 and 1 are valid in nearly every table."""


def as_array(value: Any) -> Array:
    """Return what other libraries have as arrays, on any device: tensors, lists, tables, images.

    Raises:
        StageError: when it is none, for example a list of lists of different lengths, or of a type that NumPy lacks.
    """
    try:
        tensor = value.detach().cpu() if hasattr(value, "detach") else value  # PyTorch's
        array = np.asarray(tensor.float() if str(getattr(tensor, "dtype", "")) == "torch.bfloat16" else tensor)
    except (TypeError, ValueError, RuntimeError) as error:
        raise StageError(f"a {type(value).__name__} cannot be read as an array: {one_line(error)}") from error
    if array.dtype.kind != "O":
        return array
    if array.ndim and all(isinstance(value, str) for value in array.flat):
        return array.astype(np.str_)
    raise StageError(f"a {type(value).__name__} is no array of numbers or texts. Fix: convert it with numpy.asarray")


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


def as_float32(inputs: NamedArrays) -> NamedArrays:
    """Return the inputs with floats as float32, like the ONNX model's, so that both see the same rounding."""
    return {name: a.astype(np.float32, copy=False) if a.dtype.kind == "f" else a for name, a in inputs.items()}


def data_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows as a pandas DataFrame, or as they are where pandas is not installed."""
    try:
        import pandas as pd
    except ModuleNotFoundError:
        return list(rows)
    return pd.DataFrame.from_records(rows)
