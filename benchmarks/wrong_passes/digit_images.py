"""scikit-learn's digits, with noise or several on an image; all randomness is seeded."""

from collections.abc import Callable
from functools import cache

import numpy as np

from gauntlet.core.arrays import Array

DIGITS = tuple("0123456789")
TRAINED_ON = 1000
"""Of scikit-learn's 1797 digits; all others are for tests."""
Samples = tuple[Array, Array]


@cache
def digits() -> Samples:
    """Return scikit-learn's 1797 digits in a fixed order, as images (n, 1, 8, 8) from 0 to 1, and their classes."""
    from sklearn.datasets import load_digits

    data, order = load_digits(), np.random.default_rng(0).permutation(1797)
    return (data.images[order, None] / 16).astype(np.float32), data.target[order].astype(np.int64)


def noisy(images: Array, size: float) -> Array:
    """Return images with normal noise."""
    return (images + np.random.default_rng(1).normal(0, size, images.shape)).astype(np.float32)


def digits_in_rows(
    places: int, train: int, test: int, change: Callable[[np.random.Generator, Array, Array], Samples]
) -> tuple[Samples, Samples]:
    """Return samples to train on and to test with, made of digits side by side.

    `change` gets images, shape (n, 8, places, 8), and their classes, shape (n, places).
    """
    (images, classes), rng, pair = digits(), np.random.default_rng(2), []
    for count, first, last in ((train, 0, TRAINED_ON), (test, TRAINED_ON, len(digits()[0]))):
        chosen = rng.integers(first, last, (count, places))
        pair.append(change(rng, images[chosen, 0].transpose(0, 2, 1, 3), classes[chosen]))
    return pair[0], pair[1]


def in_square(rows: Array) -> Array:
    """Return four images side by side, shape (n, 8, 4, 8), as one of 16x16, shape (n, 1, 16, 16)."""
    return rows.reshape(-1, 8, 2, 16).transpose(0, 2, 1, 3).reshape(-1, 1, 16, 16)


def by_step(sequences: Array) -> Array:
    """Return arrays of shape (streams, steps, ...) as (steps * streams, ...)."""
    return np.concatenate(np.swapaxes(sequences, 0, 1))
