"""Arrays of any type, alone and by name, and values to fill them with."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
NamedArrays = dict[str, Array]

INDEX_LIMIT = 2
"""Whole numbers may be indices into a table of unknown length; 0 and 1 fit nearly all of them."""


def random_values(
    dtype: np.dtype[np.generic], shape: tuple[int, ...], rng: np.random.Generator, below: int = INDEX_LIMIT
) -> Array:
    """Return normal floats, truth values, or whole numbers from 0 to less than `below`.

    Raises:
        ValueError: for any other type.
    """
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind in "iub":
        return rng.integers(0, 2 if dtype.kind == "b" else below, shape).astype(dtype)
    raise ValueError(f"there are no random values of the type {dtype}")
