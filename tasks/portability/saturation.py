"""What an int16 in the middle of a kernel does to a sum of products.

On x86 processors with AVX2 and without VNNI, ONNX Runtime multiplies unsigned activations by signed weights with
`vpmaddubsw`: two neighbouring products are added in an int16, which stops at 32767 and -32768. Two products of 8-bit
numbers can reach 2 * 255 * 127. Which two are neighbours was read in ONNX Runtime's own kernels
(onnxruntime/core/mlas/lib/x86_64: QgemmU8S8KernelAvx2.S, QgemvU8S8KernelAvx2.S, ConvSymKernelAvx2.S and their
AVX512Core forms): numbers 2p and 2p + 1 along the axis that is summed over, in every one of them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

INT16 = np.iinfo(np.int16)
LARGEST_U8 = 255

Int32 = npt.NDArray[np.int32]
Halves = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""The even and the odd rows of a matrix."""


@dataclass(frozen=True)
class Loss:
    """What saturation changes: `error` (saturating minus exact sums, shape (n, m)), or None where it is all zero."""

    error: Int32 | None
    saturated: int
    pairs: int


def saturation(activations: npt.NDArray[np.uint8], weights: npt.NDArray[np.int8]) -> Loss:
    """Return how the sums `weights.T @ activations` change where pairs of products saturate.

    Only pairs that can reach the limit with the largest activations that occur are computed.

    Args:
        activations: shape (k, m), in the order in which the kernel sums.
        weights: shape (k, n).
    """
    k, m = activations.shape
    n = weights.shape[1]
    pairs = -(-k // 2) * n * m
    activation_halves, weight_halves = _halves(activations), _halves(weights.astype(np.int32))
    first_top, second_top = (half.max(axis=1, initial=0).astype(np.int32)[:, None] for half in activation_halves)
    possible = _reach((first_top, second_top), weight_halves)
    error: Int32 | None = None
    saturated = 0
    for p in np.flatnonzero(possible.any(axis=1)):
        columns = np.flatnonzero(possible[p])
        first, second = (half[p, columns] for half in weight_halves)
        a, b = (half[p].astype(np.int32) for half in activation_halves)
        rows = np.flatnonzero(
            (a * max(first.max(), 0) + b * max(second.max(), 0) > INT16.max)
            | (a * min(first.min(), 0) + b * min(second.min(), 0) < INT16.min)
        )
        if not len(rows):
            continue
        sums = np.multiply.outer(first, a[rows]) + np.multiply.outer(second, b[rows])
        over = sums - np.clip(sums, INT16.min, INT16.max)
        hits = int(np.count_nonzero(over))
        if hits:
            saturated += hits
            error = np.zeros((n, m), np.int32) if error is None else error
            error[np.ix_(columns, rows)] -= over
    return Loss(error, saturated, pairs)


def can_saturate(weights: npt.NDArray[np.int8]) -> bool:
    """Tell whether any activations could make a pair of these weights, shape (k, n), saturate."""
    top = np.full((-(-len(weights) // 2), 1), LARGEST_U8, np.int32)
    return bool(_reach((top, top), _halves(weights.astype(np.int32))).any())


def _halves(array: npt.NDArray[Any]) -> Halves:
    """Return the even and the odd rows; a missing last one is zero."""
    if len(array) % 2:
        array = np.concatenate([array, np.zeros_like(array[:1])])
    return array[0::2], array[1::2]


def _reach(top: Halves, weights: Halves) -> npt.NDArray[np.bool_]:
    """Tell which pairs of weights can leave an int16 with activations between zero and `top`."""
    high: Int32 = top[0] * np.maximum(weights[0], 0) + top[1] * np.maximum(weights[1], 0)
    low: Int32 = top[0] * np.minimum(weights[0], 0) + top[1] * np.minimum(weights[1], 0)
    return np.asarray((high > INT16.max) | (low < INT16.min))
