"""Saturation in ONNX Runtime's integer kernels that multiply unsigned activations by signed weights.

ONNX Runtime computes each kernel with exact sums. NumPy recomputes only the output elements with a saturated pair.

Order of the sums, from ONNX Runtime's qlinearconv.cc and im2col: a convolution is a matrix product whose inner axis
runs over the positions of the kernel first and over the channels of a group last. Depthwise convolutions (one input
and one output channel per group) widen to 16 bits before they multiply, and so does ConvInteger, which passes the
weights as the unsigned operand. Neither saturates, so this module excludes both.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from wings.portability.saturation import Operand, SaturationError, WeightPairs, saturation

Tensor = npt.NDArray[Any]  # a value of the graph, of any data type

INPUT_ROLES: dict[str, tuple[str, ...]] = {
    "QLinearConv": ("a", "a_scale", "a_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero", "bias"),
    "QLinearMatMul": ("a", "a_scale", "a_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero"),
    "QGemm": ("a", "a_scale", "a_zero", "w", "w_scale", "w_zero", "bias", "y_scale", "y_zero"),
    "MatMulIntegerToFloat": ("a", "w", "a_scale", "w_scale", "a_zero", "w_zero", "float_bias"),
    "DynamicQuantizeMatMul": ("a", "w", "w_scale", "w_zero", "float_bias"),
    "MatMulInteger": ("a", "w", "a_zero", "w_zero"),
}  # the roles of each kernel's inputs, in order

UNSUPPORTED = {"QAttention", "DynamicQuantizeLSTM", "QEmbedLayerNormalization"}  # they may saturate; not simulated
MAX_ELEMENTS = 1 << 25  # of a kernel's output to compute at once; larger batches are split


class Product(NamedTuple):
    """One matrix product inside a kernel: with the weights `groups[group]`; the output is a view (n, *positions)."""

    group: int
    activations: Operand
    output: Tensor


@dataclass(frozen=True)
class IntegerKernel:
    """A node whose weights are signed 8-bit constants."""

    node: onnx.NodeProto
    weights: npt.NDArray[np.int8]

    @property
    def name(self) -> str:
        """The node's name, or its output's name."""
        return self.node.name or self.node.output[0]

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """The node's attributes as Python values."""
        return {a.name: helper.get_attribute_value(a) for a in self.node.attribute}

    @cached_property
    def groups(self) -> list[npt.NDArray[np.int8]]:
        """The weights as matrices (k, n) in the kernel's order: one per group or stacked matrix."""
        if self.node.op_type == "QLinearConv":
            groups = np.split(self.weights, self.attributes.get("group", 1))
            return [np.moveaxis(w, 1, -1).reshape(len(w), -1).T for w in groups]
        matrices = self.weights.T if self.attributes.get("transB", 0) else self.weights
        matrices = matrices[:, None] if matrices.ndim == 1 else matrices
        return list(matrices.reshape(-1, *matrices.shape[-2:]))

    @cached_property
    def pairs(self) -> list[WeightPairs]:
        """The pairs of weights that some input makes saturate, by group."""
        return [WeightPairs.from_weights(group) for group in self.groups]

    @property
    def can_saturate(self) -> bool:
        """Whether any input could make the kernel saturate."""
        return any(len(pairs) for pairs in self.pairs)

    def saturated(self, values: Sequence[Tensor | None], exact: Tensor) -> tuple[Tensor, SaturationError]:
        """Return the node's output with saturating sums, and the number of saturated pairs.

        `exact` is the output with exact sums; the result is this very array if nothing saturates.
        """
        roles = zip(INPUT_ROLES[self.node.op_type], values, strict=False)
        operands = {role: value for role, value in roles if value is not None}
        if self.node.op_type == "DynamicQuantizeMatMul":
            operands |= _quantized(operands["a"])
        output, saturated, pairs = exact.copy(), 0, 0
        for product in self._products(operands, output):
            change = saturation(product.activations, self.pairs[product.group], self.groups[product.group].shape[1])
            saturated, pairs = saturated + change.saturated, pairs + change.pairs
            if change.error is not None:
                self._correct(product, change.error, operands)
        return output if saturated else exact, SaturationError(None, saturated, pairs)

    def _products(self, operands: dict[str, Tensor], output: Tensor) -> Iterator[Product]:
        a = operands["a"]
        if self.node.op_type == "QLinearConv":
            yield from self._convolutions(a, _scalar(operands.get("a_zero")), output)
            return
        a = np.swapaxes(a, -1, -2) if self.attributes.get("transA", 0) else a
        if len(self.groups) == 1:
            rows = a.reshape(-1, a.shape[-1])
            yield Product(0, _row_operand(rows), output.reshape(len(rows), -1).T)
            return
        stack = output.shape[:-2]  # broadcast as NumPy's matmul does: one product for each matrix of the stack
        indices = np.arange(len(self.groups)).reshape(self.weights.shape[:-2])
        a = np.broadcast_to(a, (*stack, *a.shape[-2:]))
        for position, index in np.ndenumerate(np.broadcast_to(indices, stack)):
            yield Product(int(index), _row_operand(a[position]), output[position].T)

    def _convolutions(self, a: Tensor, a_zero: int, output: Tensor) -> Iterator[Product]:
        if self.attributes.get("channels_last", 0):
            a, output = np.moveaxis(a, -1, 1), np.moveaxis(output, -1, 1)
        parts, groups = min(len(a), -(-output.size // MAX_ELEMENTS)), len(self.groups)
        for images, outputs in zip(np.array_split(a, parts), np.array_split(output, parts), strict=True):
            split = zip(np.split(images, groups, axis=1), np.split(outputs, groups, axis=1), strict=True)
            for group, (channels, own) in enumerate(split):
                yield Product(group, self._window_operand(channels, a_zero), np.moveaxis(own, 1, 0))

    def _window_operand(self, images: Tensor, a_zero: int) -> Operand:
        """Return the windows of a convolution; its kernel positions and channels are the summed axes."""
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

    def _correct(self, product: Product, error: Tensor, operands: dict[str, Tensor]) -> None:
        """Recompute the output elements with a saturated pair."""
        weights = self.groups[product.group].astype(np.float32)
        affected = np.flatnonzero(error.any(axis=0))
        positions = np.unravel_index(affected, product.activations.positions)
        own = slice(product.group * weights.shape[1], (product.group + 1) * weights.shape[1])

        def per_channel(role: str, default: float = 0.0) -> Tensor:  # of the product's own channels, shape (n or 1, 1)
            values: Tensor = np.ravel(operands.get(role, default)).astype(np.float32)[:, None]
            return values[own] if len(values) > weights.shape[1] else values

        a = product.activations.columns(positions).astype(np.float32) - _scalar(operands.get("a_zero"))
        sums = (weights.T - per_channel("w_zero")) @ a + error[:, affected]
        index: Any = (slice(None), *positions)
        corrected = self._requantize(sums, operands, per_channel)
        product.output[index] = np.where(error[:, affected] != 0, corrected, product.output[index])

    def _requantize(self, sums: Tensor, operands: dict[str, Tensor], per_channel: Callable[..., Tensor]) -> Tensor:
        """Apply bias, scale and zero point to sums; return them in the type of the node's output."""
        if self.node.op_type == "MatMulInteger":
            return np.rint(sums).astype(np.int32)
        scale = per_channel("w_scale") * per_channel("a_scale") * self.attributes.get("alpha", 1.0)
        real: Tensor = (sums + per_channel("bias")) * scale + per_channel("float_bias")
        y_scale, y_zero = operands.get("y_scale"), operands.get("y_zero")
        if y_scale is None or y_zero is None:
            return real.astype(np.float32)
        limits = np.iinfo(y_zero.dtype)
        numbers: Tensor = np.clip(np.rint(real / per_channel("y_scale")) + _scalar(y_zero), limits.min, limits.max)
        return numbers.astype(y_zero.dtype)


def kernels(graph: onnx.GraphProto) -> dict[int, IntegerKernel]:
    """Return the nodes of an optimized graph that add pairs of products in an int16, by node index."""
    stored, result = {t.name: t for t in graph.initializer}, {}
    for index, node in enumerate(graph.node):
        names = dict(zip(INPUT_ROLES.get(node.op_type, ()), node.input, strict=False))
        weights, zero = stored.get(names.get("w", "")), stored.get(names.get("a_zero", ""))
        if weights is None or weights.data_type != onnx.TensorProto.INT8:
            continue
        if zero is not None and zero.data_type != onnx.TensorProto.UINT8:
            continue  # signed by signed runs in another kernel, which does not saturate
        kernel = IntegerKernel(node, numpy_helper.to_array(weights))
        depthwise = node.op_type == "QLinearConv" and list(weights.dims[:2]) == [kernel.attributes.get("group", 1), 1]
        if not depthwise:
            result[index] = kernel
    return result


def _quantized(values: Tensor) -> dict[str, Tensor]:
    """Quantize a tensor as DynamicQuantizeLinear does (ONNX opset 11): a range that includes zero, in 255 steps."""
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    scale = np.float32((high - low) / 255 or 1.0)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    numbers = np.clip(np.rint(values / scale) + zero, 0, 255).astype(np.uint8)
    return {"a": numbers, "a_scale": np.array(scale), "a_zero": np.array(zero, np.uint8)}


def _row_operand(rows: Tensor) -> Operand:
    """Return activations of shape (m, k) as an operand."""
    return Operand(rows.T, 1, rows.max(axis=0, initial=0).astype(np.int32))


def _scalar(values: Tensor | None) -> int:
    return 0 if values is None else int(np.asarray(values).reshape(-1)[0])
