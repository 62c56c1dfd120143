"""The integer kernels of ONNX Runtime that multiply unsigned activations by signed weights, where they saturate.

The runtime computes a kernel with exact sums. Only the answers to which a saturated pair belongs are computed in numpy.

Order of the sums, as read in ONNX Runtime's qlinearconv.cc and im2col: a convolution is a product of matrices whose
inner axis runs over the kernel's places first and over the channels of a group last. Depthwise convolutions
(one channel a group, in and out) widen to 16 bits before they multiply, and so does ConvInteger, which passes the
weights as the unsigned operand; neither saturates, so neither is here.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from tasks.portability.saturation import Loss, Operand, Pairs, saturation

Array = npt.NDArray[Any]

PLACES: dict[str, tuple[str, ...]] = {
    "QLinearConv": ("a", "a_scale", "a_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero", "bias"),
    "QLinearMatMul": ("a", "a_scale", "a_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero"),
    "QGemm": ("a", "a_scale", "a_zero", "w", "w_scale", "w_zero", "bias", "y_scale", "y_zero"),
    "MatMulIntegerToFloat": ("a", "w", "a_scale", "w_scale", "a_zero", "w_zero", "float_bias"),
    "DynamicQuantizeMatMul": ("a", "w", "w_scale", "w_zero", "float_bias"),
    "MatMulInteger": ("a", "w", "a_zero", "w_zero"),
}
"""What the inputs of each kernel are."""

UNKNOWN = {"QAttention", "DynamicQuantizeLSTM", "QEmbedLayerNormalization"}
"""Kernels with such products inside that nobody computes here."""

SEVEN_BIT = 64
"""What `reduce_range` makes the largest weight: 2 * 255 * 64 is less than 32767."""

MOST_ELEMENTS = 1 << 25
"""Of one kernel's output; more samples are computed one part after the other."""


@dataclass(frozen=True)
class Product:
    """One product of matrices inside a kernel."""

    group: int
    """The number of its weights among the kernel's `groups`."""
    activations: Operand
    output: Array
    """A view of what it makes, shape (n, *positions)."""


@dataclass(frozen=True)
class Kernel:
    """One node whose weights are signed 8-bit constants."""

    node: onnx.NodeProto
    weights: npt.NDArray[np.int8]

    @property
    def name(self) -> str:
        """The node's name, or that of its output."""
        return self.node.name or self.node.output[0]

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """The node's attributes, as Python's own values."""
        return {a.name: helper.get_attribute_value(a) for a in self.node.attribute}

    @cached_property
    def groups(self) -> list[npt.NDArray[np.int8]]:
        """The weights as matrices (k, n) in the kernel's order: one a group of a convolution, or those of a stack."""
        if self.node.op_type == "QLinearConv":
            groups = np.split(self.weights, self.attributes.get("group", 1))
            return [np.moveaxis(w, 1, -1).reshape(len(w), -1).T for w in groups]
        matrices = self.weights.T if self.attributes.get("transB", 0) else self.weights
        matrices = matrices[:, None] if matrices.ndim == 1 else matrices
        return list(matrices.reshape(-1, *matrices.shape[-2:]))

    @cached_property
    def pairs(self) -> list[Pairs]:
        """The pairs of weights that some input would make saturate, by group."""
        return [Pairs.of(group) for group in self.groups]

    @property
    def can_saturate(self) -> bool:
        """Whether any input at all could make it saturate."""
        return any(len(pairs) for pairs in self.pairs)

    @property
    def seven_bit(self) -> bool:
        """Whether its weights are so small that two products always fit an int16."""
        return bool(np.abs(self.weights.astype(np.int16)).max(initial=0) <= SEVEN_BIT)

    def saturated(self, values: Sequence[Array | None], exact: Array) -> tuple[Array, Loss]:
        """Return the node's output with sums that saturate, and what did so.

        Args:
            values: the node's inputs.
            exact: its output with exact sums; where nothing saturates, it is what is returned.
        """
        named = zip(PLACES[self.node.op_type], values, strict=False)
        given = {role: value for role, value in named if value is not None}
        if self.node.op_type == "DynamicQuantizeMatMul":
            given |= _quantized(given["a"])
        output, saturated, pairs = exact.copy(), 0, 0
        for product in self._products(given, output):
            group = product.group
            loss = saturation(product.activations, self.pairs[group], self.groups[group].shape[1])
            saturated, pairs = saturated + loss.saturated, pairs + loss.pairs
            if loss.error is not None:
                self._correct(product, loss.error, given)
        return output if saturated else exact, Loss(None, saturated, pairs)

    def _products(self, given: dict[str, Array], output: Array) -> Iterator[Product]:
        a = given["a"]
        if self.node.op_type != "QLinearConv":
            a = np.swapaxes(a, -1, -2) if self.attributes.get("transA", 0) else a
            if len(self.groups) == 1:
                rows = a.reshape(-1, a.shape[-1])
                yield Product(0, _by_rows(rows), output.reshape(len(rows), -1).T)
                return
            batch = output.shape[:-2]  # as NumPy's matmul broadcasts it: one product for each place of the stack
            numbers = np.arange(len(self.groups)).reshape(self.weights.shape[:-2])
            a = np.broadcast_to(a, (*batch, *a.shape[-2:]))
            for place, number in np.ndenumerate(np.broadcast_to(numbers, batch)):
                yield Product(int(number), _by_rows(a[place]), output[place].T)
            return
        if self.attributes.get("channels_last", 0):
            a, output = np.moveaxis(a, -1, 1), np.moveaxis(output, -1, 1)
        parts = min(len(a), -(-output.size // MOST_ELEMENTS))
        for images, made in zip(np.array_split(a, parts), np.array_split(output, parts), strict=True):
            groups = len(self.groups)
            split = zip(np.split(images, groups, axis=1), np.split(made, groups, axis=1), strict=True)
            for group, (channels, own) in enumerate(split):
                yield Product(group, self._under_kernel(channels, _scalar(given.get("a_zero"))), np.moveaxis(own, 1, 0))

    def _under_kernel(self, images: Array, a_zero: int) -> Operand:
        """Return the values under the kernel: its places and the channels are summed over."""
        kernel, rank = self.weights.shape[2:], self.weights.ndim - 2
        strides, dilations = (self.attributes.get(n, [1] * rank) for n in ("strides", "dilations"))
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        pads = self._pads(images.shape[2:], reach, strides)
        padded = np.pad(images, [(0, 0), (0, 0), *pads], constant_values=a_zero)
        windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=tuple(range(2, 2 + rank)))
        steps = [slice(None, None, s) for s in strides]
        windows = windows[(slice(None), slice(None), *steps, *(slice(None, None, d) for d in dilations))]
        order = (*range(2 + rank, 2 + 2 * rank), 1, 0, *range(2, 2 + rank))
        tops = padded.max(axis=(0, *range(2, 2 + rank)), initial=0).astype(np.int32)
        return Operand(windows.transpose(order), rank + 1, np.tile(tops, math.prod(kernel)))

    def _pads(self, sizes: tuple[int, ...], reach: list[int], strides: list[int]) -> list[tuple[int, int]]:
        kind, rank = self.attributes.get("auto_pad", b"NOTSET").decode(), len(sizes)
        if not kind.startswith("SAME"):
            pads = self.attributes.get("pads", [0] * 2 * rank) if kind == "NOTSET" else [0] * 2 * rank
            return list(zip(pads[:rank], pads[rank:], strict=True))
        totals = [max(0, (-(-n // s) - 1) * s + r - n) for n, s, r in zip(sizes, strides, reach, strict=True)]
        return [(t // 2, t - t // 2) if kind == "SAME_UPPER" else (t - t // 2, t // 2) for t in totals]

    def _correct(self, product: Product, error: Array, given: dict[str, Array]) -> None:
        """Write the answers to which a saturated pair belongs into the output."""
        weights = self.groups[product.group].astype(np.float32)
        wrong = np.flatnonzero(error.any(axis=0))
        places = np.unravel_index(wrong, product.activations.positions)
        own = slice(product.group * weights.shape[1], (product.group + 1) * weights.shape[1])

        def along(role: str, default: float = 0.0) -> Array:  # the product's own channels, shape (n or 1, 1)
            values: Array = np.ravel(given.get(role, default)).astype(np.float32)[:, None]
            return values[own] if len(values) > weights.shape[1] else values

        a = product.activations.columns(places).astype(np.float32) - _scalar(given.get("a_zero"))
        sums = (weights.T - along("w_zero")) @ a + error[:, wrong]
        here: Any = (slice(None), *places)
        answers = self._finished(sums, given, along)
        product.output[here] = np.where(error[:, wrong] != 0, answers, product.output[here])

    def _finished(self, sums: Array, given: dict[str, Array], along: Callable[..., Array]) -> Array:
        """Return sums with bias, scale and zero point, in the type of the node's output."""
        if self.node.op_type == "MatMulInteger":
            return np.rint(sums).astype(np.int32)
        scale = along("w_scale") * along("a_scale") * self.attributes.get("alpha", 1.0)
        real: Array = (sums + along("bias")) * scale + along("float_bias")
        y_scale, y_zero = given.get("y_scale"), given.get("y_zero")
        if y_scale is None or y_zero is None:
            return real.astype(np.float32)
        limits = np.iinfo(y_zero.dtype)
        numbers: Array = np.clip(np.rint(real / along("y_scale")) + _scalar(y_zero), limits.min, limits.max)
        return numbers.astype(y_zero.dtype)


def kernels(graph: onnx.GraphProto) -> dict[int, Kernel]:
    """Return the nodes of an optimised graph whose products can meet in an int16, by their place in it."""
    stored = {t.name: t for t in graph.initializer}
    found = {}
    for place, node in enumerate(graph.node):
        names = dict(zip(PLACES.get(node.op_type, ()), node.input, strict=False))
        weights, zero = stored.get(names.get("w", "")), stored.get(names.get("a_zero", ""))
        if weights is None or weights.data_type != onnx.TensorProto.INT8:
            continue
        if zero is not None and zero.data_type != onnx.TensorProto.UINT8:
            continue  # both signed: another kernel, which does not saturate
        kernel = Kernel(node, numpy_helper.to_array(weights))
        depthwise = node.op_type == "QLinearConv" and list(weights.dims[:2]) == [kernel.attributes.get("group", 1), 1]
        if not depthwise:
            found[place] = kernel
    return found


def _quantized(values: Array) -> dict[str, Array]:
    """Return a tensor as DynamicQuantizeLinear gives it (ONNX operator 11): range with zero in it, 255 steps."""
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    scale = np.float32((high - low) / 255 or 1.0)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    numbers = np.clip(np.rint(values / scale) + zero, 0, 255).astype(np.uint8)
    return {"a": numbers, "a_scale": np.array(scale), "a_zero": np.array(zero, np.uint8)}


def _by_rows(rows: Array) -> Operand:
    """Return activations of shape (m, k) as an operand."""
    return Operand(rows.T, 1, rows.max(axis=0, initial=0).astype(np.int32))


def _scalar(values: Array | None) -> int:
    return 0 if values is None else int(np.asarray(values).reshape(-1)[0])
