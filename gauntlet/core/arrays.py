"""Type aliases for NumPy arrays, and random values of any element type."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
NamedArrays = dict[str, Array]

INDEX_LIMIT = 2
"""Integers may index a table of unknown length; 0 and 1 are valid in nearly every table."""


def random_values(
    dtype: np.dtype[np.generic], shape: tuple[int, ...], rng: np.random.Generator, below: int = INDEX_LIMIT
) -> Array:
    """Return normally distributed floats, random booleans, or integers in [0, `below`); `ValueError` otherwise."""
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind in "iub":
        return rng.integers(0, 2 if dtype.kind == "b" else below, shape).astype(dtype)
    raise ValueError(f"cannot generate random values of type {dtype}; supported: floats, integers and booleans")
