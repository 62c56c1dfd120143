"""The integer kernels of ONNX Runtime that multiply unsigned activations by signed weights, computed in numpy.

Order of the sums, as read in ONNX Runtime's qlinearconv.cc and im2col: a convolution is a product of matrices whose
inner axis runs over the kernel's places first and over the channels of a group last. Depthwise convolutions
(one channel a group, in and out) widen to 16 bits before they multiply, and so does ConvInteger, which passes the
weights as the unsigned operand; neither saturates, so neither is here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from tasks.portability.saturation import Loss, can_saturate, saturation

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
"""Of one unfolded matrix; more samples are computed one part after the other."""


@dataclass(frozen=True)
class Kernel:
    """One node whose weights are signed 8-bit constants."""

    node: onnx.NodeProto
    weights: npt.NDArray[np.int8]

    @property
    def name(self) -> str:
        """The node's name, or that of its output."""
        return self.node.name or self.node.output[0]

    @property
    def inputs(self) -> list[str]:
        """The names of the values that it reads."""
        return list(self.node.input)

    @property
    def attributes(self) -> dict[str, Any]:
        """The node's attributes, as Python's own values."""
        return {a.name: helper.get_attribute_value(a) for a in self.node.attribute}

    @property
    def groups(self) -> list[npt.NDArray[np.int8]]:
        """The weights as matrices (k, n) in the kernel's order: one a group of a convolution."""
        if self.node.op_type == "QLinearConv":
            groups = np.split(self.weights, self.attributes.get("group", 1))
            return [np.moveaxis(w, 1, -1).reshape(len(w), -1).T for w in groups]
        matrix = self.weights.T if self.attributes.get("transB", 0) else self.weights
        return [matrix]

    @property
    def can_saturate(self) -> bool:
        """Whether any input at all could make it saturate."""
        return any(can_saturate(group) for group in self.groups)

    @property
    def seven_bit(self) -> bool:
        """Whether its weights are so small that two products always fit an int16."""
        return bool(np.abs(self.weights.astype(np.int16)).max(initial=0) <= SEVEN_BIT)

    def run(self, values: Sequence[Array | None], *, saturating: bool) -> tuple[Array, Loss]:
        """Return the node's output for its inputs, and what saturated in it."""
        named = zip(PLACES[self.node.op_type], values, strict=False)
        given = {role: value for role, value in named if value is not None}
        if self.node.op_type == "DynamicQuantizeMatMul":
            given |= _quantized(given["a"])
        sums, loss = self._sums(given, saturating=saturating)
        return self._finished(sums, given), loss

    def _sums(self, given: dict[str, Array], *, saturating: bool) -> tuple[Array, Loss]:
        """Return the sums of products of centred numbers, as the node's output is shaped."""
        a, a_zero = given["a"], _scalar(given.get("a_zero"))
        w_zero = _vector(given.get("w_zero"))
        if self.node.op_type != "QLinearConv":
            a = np.swapaxes(a, -1, -2) if self.attributes.get("transA", 0) else a
            rows = a.reshape(-1, a.shape[-1]).T
            sums, loss = _multiply(rows, self.groups[0], a_zero, w_zero, saturating=saturating)
            return sums.T.reshape(*a.shape[:-1], -1), loss
        last = bool(self.attributes.get("channels_last", 0))
        images = np.moveaxis(a, -1, 1) if last else a
        parts = [self._convolved(part, a_zero, w_zero, saturating=saturating) for part in self._parts(images)]
        whole = np.concatenate([sums for sums, _ in parts])
        loss = Loss(None, sum(p.saturated for _, p in parts), sum(p.pairs for _, p in parts))
        return np.moveaxis(whole, 1, -1) if last else whole, loss

    def _parts(self, images: Array) -> list[Array]:
        cost = self.weights[0].size * self.attributes.get("group", 1) * images[0, 0].size
        return np.array_split(images, min(len(images), -(-len(images) * cost // MOST_ELEMENTS)))

    def _convolved(self, images: Array, a_zero: int, w_zero: Array, *, saturating: bool) -> tuple[Array, Loss]:
        groups = self.groups
        zeros = np.broadcast_to(w_zero, (len(self.weights),)).reshape(len(groups), -1)
        done, saturated, pairs = [], 0, 0
        for part, weights, zero in zip(np.split(images, len(groups), axis=1), groups, zeros, strict=True):
            columns, shape = self._unfolded(part, a_zero)
            sums, loss = _multiply(columns, weights, a_zero, zero, saturating=saturating)
            done.append(np.moveaxis(sums.reshape(-1, len(images), *shape), 1, 0))
            saturated, pairs = saturated + loss.saturated, pairs + loss.pairs
        return np.concatenate(done, axis=1), Loss(None, saturated, pairs)

    def _unfolded(self, images: Array, a_zero: int) -> tuple[Array, tuple[int, ...]]:
        """Return the values under the kernel, shape (places x channels, samples x outputs), and an output's shape."""
        kernel, rank = self.weights.shape[2:], self.weights.ndim - 2
        strides, dilations = (self.attributes.get(n, [1] * rank) for n in ("strides", "dilations"))
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        pads = self._pads(images.shape[2:], reach, strides)
        padded = np.pad(images, [(0, 0), (0, 0), *pads], constant_values=a_zero)
        windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=tuple(range(2, 2 + rank)))
        steps = [slice(None, None, s) for s in strides]
        windows = windows[(slice(None), slice(None), *steps, *(slice(None, None, d) for d in dilations))]
        shape = windows.shape[2 : 2 + rank]
        order = (*range(2 + rank, 2 + 2 * rank), 1, 0, *range(2, 2 + rank))
        return windows.transpose(order).reshape(-1, len(images) * int(np.prod(shape))), shape

    def _pads(self, sizes: tuple[int, ...], reach: list[int], strides: list[int]) -> list[tuple[int, int]]:
        kind, rank = self.attributes.get("auto_pad", b"NOTSET").decode(), len(sizes)
        if not kind.startswith("SAME"):
            pads = self.attributes.get("pads", [0] * 2 * rank) if kind == "NOTSET" else [0] * 2 * rank
            return list(zip(pads[:rank], pads[rank:], strict=True))
        totals = [max(0, (-(-n // s) - 1) * s + r - n) for n, s, r in zip(sizes, strides, reach, strict=True)]
        return [(t // 2, t - t // 2) if kind == "SAME_UPPER" else (t - t // 2, t // 2) for t in totals]

    def _finished(self, sums: Array, given: dict[str, Array]) -> Array:
        """Return the sums with bias, scale and zero point, in the type of the node's output."""
        if self.node.op_type == "MatMulInteger":
            return np.rint(sums).astype(np.int32)

        def along(values: Array | None) -> Array:  # the axis of the output's channels
            first = self.node.op_type == "QLinearConv" and not self.attributes.get("channels_last", 0)
            flat = _vector(values)
            shaped: Array = flat.reshape(-1, *[1] * (sums.ndim - 2)) if first and flat.size > 1 else flat
            return shaped

        total = sums + along(given.get("bias"))
        real: Array = total * (along(given["w_scale"]) * _vector(given["a_scale"]) * self.attributes.get("alpha", 1.0))
        real = real + given.get("float_bias", 0)
        y_scale, y_zero = given.get("y_scale"), given.get("y_zero")
        if y_scale is None or y_zero is None:
            return real.astype(np.float32)
        limits = np.iinfo(y_zero.dtype)
        numbers: Array = np.clip(np.rint(real / _vector(y_scale)) + _scalar(y_zero), limits.min, limits.max)
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


def _multiply(
    a: npt.NDArray[np.uint8], w: npt.NDArray[np.int8], a_zero: int, w_zero: Array, *, saturating: bool
) -> tuple[Array, Loss]:
    """Return the sums (n, m) of centred products, wrong as the kernel's are where it saturates."""
    centred = (w.astype(np.float32) - w_zero).T @ (a.astype(np.float32) - a_zero)
    loss = saturation(a, w) if saturating else Loss(None, 0, 0)
    return (centred if loss.error is None else centred + loss.error), loss


def _quantized(values: Array) -> dict[str, Array]:
    """Return a tensor as DynamicQuantizeLinear gives it (ONNX operator 11): range with zero in it, 255 steps."""
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    scale = np.float32((high - low) / 255 or 1.0)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    numbers = np.clip(np.rint(values / scale) + zero, 0, 255).astype(np.uint8)
    return {"a": numbers, "a_scale": np.array(scale), "a_zero": np.array(zero, np.uint8)}


def _vector(values: Array | None) -> Array:
    flat: Array = np.zeros(1) if values is None else np.ravel(values)
    return flat.astype(np.float32)


def _scalar(values: Array | None) -> int:
    return 0 if values is None else int(np.asarray(values).reshape(-1)[0])
