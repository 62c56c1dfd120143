"""What an int16 in the middle of a kernel does to a sum of products.

On x86 processors with AVX2 and without VNNI, ONNX Runtime multiplies unsigned activations by signed weights with
`vpmaddubsw`: two neighbouring products are added in an int16, which stops at 32767 and -32768. Two products of 8-bit
numbers can reach 2 * 255 * 127. Which two are neighbours was read in ONNX Runtime's own kernels
(onnxruntime/core/mlas/lib/x86_64: QgemmU8S8KernelAvx2.S, QgemvU8S8KernelAvx2.S, ConvSymKernelAvx2.S and their
AVX512Core forms): numbers 2p and 2p + 1 along the axis that is summed over, in every one of them.
"""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

INT16 = np.iinfo(np.int16)
LARGEST_U8 = 255
SAFE_SUM = INT16.max // LARGEST_U8
"""Of two weights of one sign: with this one, 128, no activations reach an int16's end."""

Int32 = npt.NDArray[np.int32]
Indices = npt.NDArray[np.intp]
Positions = tuple[npt.NDArray[Any], ...]


@dataclass(frozen=True)
class Operand:
    """Activations as a matrix (k, m) in the order in which the kernel sums, without a copy of them.

    Under a convolution's kernel most values stand many times, so the matrix is far larger than the array behind it.
    """

    values: npt.NDArray[np.uint8]
    """A view: first the axes that are summed over, k numbers in all, then those of the output's positions, m in all."""
    summed: int
    """How many axes come first."""
    tops: Int32
    """The largest value that a row can hold, or more, shape (k,)."""

    @property
    def positions(self) -> tuple[int, ...]:
        """The shape of the positions."""
        return self.values.shape[self.summed :]

    def row(self, number: int) -> Int32:
        """Return one row, shape (m,); behind the last one come zeros."""
        if number >= len(self.tops):
            return np.zeros(math.prod(self.positions), np.int32)
        place = np.unravel_index(number, self.values.shape[: self.summed])
        row: Int32 = self.values[place].ravel().astype(np.int32)
        return row

    def columns(self, positions: Positions) -> npt.NDArray[np.uint8]:
        """Return the columns at some positions, shape (k, number of them)."""
        chosen: Any = (..., *positions)
        columns: npt.NDArray[np.uint8] = self.values[chosen].reshape(len(self.tops), -1)
        return columns


@dataclass(frozen=True)
class Pairs:
    """Pairs of neighbouring weights that some activations would make saturate, by place and column: four equal lengths.

    There are few of them, and whatever is computed here is computed of these only.
    """

    place: Indices
    """p of the rows 2p and 2p + 1, ascending."""
    column: Indices
    first: Int32
    second: Int32

    @classmethod
    def of(cls, weights: npt.NDArray[np.int8]) -> Self:
        """Find them in weights of shape (k, n), in the order in which the kernel sums."""
        wide = weights.astype(np.int16)
        odd = np.concatenate([wide[1::2], np.zeros_like(wide[: len(wide) % 2])])  # behind the last one comes a zero
        even = wide[0::2]
        high = np.maximum(even, 0) + np.maximum(odd, 0) > SAFE_SUM
        low = np.minimum(even, 0) + np.minimum(odd, 0) < -SAFE_SUM
        place, column = np.nonzero(high | low)
        return cls(place, column, even[place, column].astype(np.int32), odd[place, column].astype(np.int32))

    def __len__(self) -> int:
        return len(self.place)

    def reachable(self, tops: Int32) -> "Pairs":
        """Return those that can saturate with activations between zero and `tops`, shape (k,)."""
        top = np.append(tops, 0)
        a, b = top[2 * self.place], top[np.minimum(2 * self.place + 1, len(tops))]
        high = a * np.maximum(self.first, 0) + b * np.maximum(self.second, 0) > INT16.max
        low = a * np.minimum(self.first, 0) + b * np.minimum(self.second, 0) < INT16.min
        kept = high | low
        return Pairs(self.place[kept], self.column[kept], self.first[kept], self.second[kept])


@dataclass(frozen=True)
class Loss:
    """What saturation changes: `error` (saturating minus exact sums, shape (n, m)), or None where it is all zero."""

    error: Int32 | None
    saturated: int
    pairs: int


def saturation(activations: Operand, weights: Pairs, columns: int) -> Loss:
    """Return how the sums `weights.T @ activations` change where pairs of products saturate.

    Args:
        activations: shape (k, m).
        weights: the pairs of a matrix of shape (k, n).
        columns: n.
    """
    m = math.prod(activations.positions)
    possible = weights.reachable(activations.tops)
    error: Int32 | None = None
    saturated = 0
    for place, start, count in zip(*np.unique(possible.place, return_index=True, return_counts=True), strict=True):
        own = slice(start, start + count)
        first, second = possible.first[own], possible.second[own]
        a, b = activations.row(2 * place), activations.row(2 * place + 1)
        reached = np.flatnonzero(
            (a * max(first.max(), 0) + b * max(second.max(), 0) > INT16.max)
            | (a * min(first.min(), 0) + b * min(second.min(), 0) < INT16.min)
        )
        if not len(reached):
            continue
        sums = np.multiply.outer(first, a[reached]) + np.multiply.outer(second, b[reached])
        over = sums - np.clip(sums, INT16.min, INT16.max)
        hits = int(np.count_nonzero(over))
        if hits:
            saturated += hits
            error = np.zeros((columns, m), np.int32) if error is None else error
            error[np.ix_(possible.column[own], reached)] -= over
    return Loss(error, saturated, -(-len(activations.tops) // 2) * columns * m)
