"""The arithmetic of pairs, against the plainest way to compute it."""

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from wings.portability.saturation import Operand, SaturationError, WeightPairs, saturation

SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(1, 5))


def drawn(shape: tuple[int, int, int], seed: int, largest: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int8]]:
    k, m, n = shape
    rng = np.random.default_rng(seed)
    a = rng.choice(np.array([0, 1, 127, 128, 200, 255], np.uint8), (k, m))
    w = rng.integers(-largest, largest, (k, n), endpoint=True).astype(np.int8)
    return a, w


def lost(a: npt.NDArray[np.uint8], w: npt.NDArray[np.int8]) -> SaturationError:
    return saturation(Operand(a, 1, a.max(axis=1).astype(np.int32)), WeightPairs.from_weights(w), w.shape[1])


def can_saturate(w: npt.NDArray[np.int8]) -> bool:
    return len(WeightPairs.from_weights(w)) > 0


def one_by_one(a: npt.NDArray[np.uint8], w: npt.NDArray[np.int8]) -> tuple[npt.NDArray[np.int64], int]:
    """Sum pair by pair in Python's integers, each pair cut off at the ends of an int16."""
    sums, cut = np.zeros((w.shape[1], a.shape[1]), np.int64), 0
    for n, m in np.ndindex(*sums.shape):
        for first in range(0, len(a), 2):
            pair = sum(int(a[k, m]) * int(w[k, n]) for k in range(first, min(first + 2, len(a))))
            kept = min(max(pair, -32768), 32767)
            sums[n, m] += kept
            cut += kept != pair
    return sums, cut


@given(shape=SHAPES, seed=st.integers(0, 10**6))
def test_saturating_sums_are_those_of_pair_by_pair_addition(shape: tuple[int, int, int], seed: int) -> None:
    a, w = drawn(shape, seed, 127)
    expected, cut = one_by_one(a, w)
    loss = lost(a, w)
    error = 0 if loss.error is None else loss.error
    np.testing.assert_array_equal(w.T.astype(np.int64) @ a.astype(np.int64) + error, expected)
    assert (loss.saturated, loss.pairs) == (cut, -(-shape[0] // 2) * shape[1] * shape[2])


@given(shape=SHAPES, seed=st.integers(0, 10**6), largest=st.integers(1, 127))
def test_weights_that_cannot_saturate_never_do(shape: tuple[int, int, int], seed: int, largest: int) -> None:
    a, w = drawn(shape, seed, largest)
    full = np.full_like(a, 255)
    assert can_saturate(w) >= (lost(a, w).saturated > 0)
    alone = [
        lost(np.where(w[:, [n]] * sign > 0, full[:, :1], 0).astype(np.uint8), w[:, [n]])
        for n in range(shape[2])
        for sign in (1, -1)
    ]
    assert can_saturate(w) == any(loss.saturated for loss in alone)


@given(shape=SHAPES, seed=st.integers(0, 10**6))
def test_seven_bit_weights_cannot_saturate(shape: tuple[int, int, int], seed: int) -> None:
    assert not can_saturate(drawn(shape, seed, 64)[1])
    assert can_saturate(np.full((2, 1), 127, np.int8))
