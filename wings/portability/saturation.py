"""Saturation of 16-bit intermediate sums in integer kernels.

On x86 processors with AVX2 and without VNNI, ONNX Runtime multiplies unsigned activations by signed weights with
`vpmaddubsw`: two neighboring products are added in an int16, which saturates at 32767 and -32768. The sum of two
products can reach 2 * 255 * 127. Which two are added follows from the source of ONNX Runtime's kernels
(onnxruntime/core/mlas/lib/x86_64: QgemmU8S8KernelAvx2.S, QgemvU8S8KernelAvx2.S, ConvSymKernelAvx2.S and their
AVX512Core variants): in all of them, elements 2p and 2p + 1 along the summed axis.
"""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

INT16 = np.iinfo(np.int16)
LARGEST_U8 = 255
SAFE_SUM = INT16.max // LARGEST_U8
"""Largest sum of two weights of one sign (128) at which no activations exceed an int16."""

Int32 = npt.NDArray[np.int32]
Indices = npt.NDArray[np.intp]
Positions = tuple[npt.NDArray[Any], ...]


@dataclass(frozen=True)
class Operand:
    """Activations as a matrix (k, m) in the order in which the kernel sums.

    It is a view: the windows of a convolution overlap, so a copy would be far larger. The first `summed` axes of
    `values` have k elements in all, the others, the output positions, m. `tops` are upper bounds of the rows.
    """

    values: npt.NDArray[np.uint8]
    summed: int
    tops: Int32

    @property
    def positions(self) -> tuple[int, ...]:
        """Shape of the output positions."""
        return self.values.shape[self.summed :]

    def row(self, number: int) -> Int32:
        """Return one row, shape (m,); zeros beyond the last row."""
        if number >= len(self.tops):
            return np.zeros(math.prod(self.positions), np.int32)
        index = np.unravel_index(number, self.values.shape[: self.summed])
        row: Int32 = self.values[index].ravel().astype(np.int32)
        return row

    def columns(self, positions: Positions) -> npt.NDArray[np.uint8]:
        """Return the columns at the given positions, shape (k, number of positions)."""
        index: Any = (..., *positions)
        columns: npt.NDArray[np.uint8] = self.values[index].reshape(len(self.tops), -1)
        return columns


@dataclass(frozen=True)
class WeightPairs:
    """The few pairs of neighboring weights that some activations make saturate: four arrays of one length.

    `pair` is the index p of the rows 2p and 2p + 1, ascending.
    """

    pair: Indices
    column: Indices
    first: Int32
    second: Int32

    @classmethod
    def from_weights(cls, weights: npt.NDArray[np.int8]) -> Self:
        """Find the pairs in weights of shape (k, n), whose rows are in the order in which the kernel sums."""
        wide = weights.astype(np.int16)
        odd = np.concatenate([wide[1::2], np.zeros_like(wide[: len(wide) % 2])])  # padded with a zero row
        even = wide[0::2]
        high = np.maximum(even, 0) + np.maximum(odd, 0) > SAFE_SUM
        low = np.minimum(even, 0) + np.minimum(odd, 0) < -SAFE_SUM
        pair, column = np.nonzero(high | low)
        return cls(pair, column, even[pair, column].astype(np.int32), odd[pair, column].astype(np.int32))

    def __len__(self) -> int:
        return len(self.pair)

    def reachable(self, tops: Int32) -> "WeightPairs":
        """Return the pairs that can saturate with activations between zero and `tops`, shape (k,)."""
        top = np.append(tops, 0)
        a, b = top[2 * self.pair], top[np.minimum(2 * self.pair + 1, len(tops))]
        high = a * np.maximum(self.first, 0) + b * np.maximum(self.second, 0) > INT16.max
        low = a * np.minimum(self.first, 0) + b * np.minimum(self.second, 0) < INT16.min
        kept = high | low
        return WeightPairs(self.pair[kept], self.column[kept], self.first[kept], self.second[kept])


@dataclass(frozen=True)
class SaturationError:
    """Saturating minus exact sums, shape (n, m), or None if all are zero; how many of all pairs saturated."""

    error: Int32 | None
    saturated: int
    pairs: int


def saturation(activations: Operand, weights: WeightPairs, columns: int) -> SaturationError:
    """Return the error of the sums `weights.T @ activations` of shape (n, m); `columns` is n."""
    m = math.prod(activations.positions)
    possible = weights.reachable(activations.tops)
    error: Int32 | None = None
    saturated = 0
    for pair, start, count in zip(*np.unique(possible.pair, return_index=True, return_counts=True), strict=True):
        own = slice(start, start + count)
        first, second = possible.first[own], possible.second[own]
        a, b = activations.row(2 * pair), activations.row(2 * pair + 1)
        reached = np.flatnonzero(
            (a * max(first.max(), 0) + b * max(second.max(), 0) > INT16.max)
            | (a * min(first.min(), 0) + b * min(second.min(), 0) < INT16.min)
        )
        if not len(reached):
            continue
        sums = np.multiply.outer(first, a[reached]) + np.multiply.outer(second, b[reached])
        over = sums - np.clip(sums, INT16.min, INT16.max)
        if hits := int(np.count_nonzero(over)):
            saturated += hits
            error = np.zeros((columns, m), np.int32) if error is None else error
            error[np.ix_(possible.column[own], reached)] -= over
    return SaturationError(error, saturated, -(-len(activations.tops) // 2) * columns * m)
