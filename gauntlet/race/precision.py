"""Error of outputs against exact ones, and the precision that it implies."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from gauntlet.core.arrays import Array
from gauntlet.core.ragged import comparable
from gauntlet.metrics.error_metrics import sqnr_db
from gauntlet.onnx_model.model_file import read_model, write_model
from gauntlet.onnx_model.operator_types import FLOAT_OPS
from gauntlet.targets.base import Precision

FLOOR_DB: dict[Precision, float] = {"f32": 90.0, "tf32": 57.0, "f16": 57.0, "bf16": 35.0, "int8": 20.0}
"""Least SQNR of outputs computed in a precision. Measured: about 127 dB for float32, 46 to 53 dB for bfloat16 (mantissa
of 7 bits); no precision lies between float32 and those with a mantissa of 10 bits."""
FINE_TO_COARSE: tuple[Precision, ...] = ("f32", "tf32", "f16", "bf16", "int8")
SEVEN_BIT = 64
"""Largest 7-bit weight: the sum of two products with unsigned bytes fits an int16."""
MARGIN_DB: dict[Precision, float] = {"f32": 45.0, "tf32": 6.0, "f16": 6.0, "bf16": -12.0, "int8": math.inf}
"""The same, above the SQNR of outputs with weights rounded to bfloat16. Measured (docs/gpu.md): float32 at least 68 dB
above it, TF32 and float16 11 to 25 dB, bfloat16 from 8 dB below to 1 dB above."""
NAMES: dict[Precision, str] = {"f32": "f32", "f16": "tf32 or f16", "bf16": "bf16"}
BF16 = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)
WEIGHTS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE}


def worst_sqnr_db(outputs: Sequence[Array], expected: Sequence[Array], least: float | None = None) -> float:
    """Return the least SQNR of any output in dB; NaN where outputs are missing or differ in shape.

    Only floating-point outputs count where there are any: a different class or index says nothing about the precision.

    Args:
        outputs: arrays of shape (n, ...).
        expected: the exact outputs, of the same shapes.
        least: compare probabilities by their logarithms, clipped at this value. Where a Softmax saturates, the noise of
            7 bits of mantissa is 119 dB away.
    """
    if not (pairs := comparable(outputs, expected)):
        return math.nan
    floats = [pair for pair in pairs if pair[1].dtype.kind == "f"]
    if not floats:
        return math.inf if all(np.array_equal(*pair) for pair in pairs) else -math.inf
    if least is not None:
        floats = [(_log(a, least), _log(b, least)) if _probabilities(b) else (a, b) for a, b in floats]
    return min((sqnr_db(*pair) for pair in floats), key=lambda value: -math.inf if math.isnan(value) else value)


def _log(array: Array, least: float) -> Array:
    return np.log(np.maximum(array.astype(np.float64), least))


def _probabilities(array: Array) -> bool:
    """Return whether an output of shape (n, ...) has no negative value, and sums to 1 along one of its other axes."""
    axes = [axis for axis in range(1, array.ndim) if array.shape[axis] > 1]
    return array.min(initial=0) >= 0 and any(np.allclose(array.sum(axis, np.float64), 1, atol=0.01) for axis in axes)


def floors_db(rounded_db: float) -> dict[Precision, float]:
    """Return the least SQNR of outputs by precision: lower for a network that amplifies rounding errors.

    Args:
        rounded_db: of the outputs with weights rounded to bfloat16; infinite if unknown.
    """
    return {name: min(floor, rounded_db + MARGIN_DB[name]) for name, floor in FLOOR_DB.items()}


def precision_name(value_db: float, kernels: Mapping[str, int], floors: Mapping[Precision, float] = FLOOR_DB) -> str:
    """Return the precision of outputs with this SQNR, or that of the kernels where it is coarser.

    Averaging in a network can hide the difference between coarse precisions, never the difference to float32.
    """
    names = [name for precision, name in NAMES.items() if value_db >= floors[precision]]
    if not names:
        return "less than bf16"
    coarse = [name for name in names if set(kernels) & set(name.split(" or "))]
    return coarse[-1] if coarse else names[0]


def write_bf16_weights(model: Path, destination: Path) -> bool:
    """Write a copy whose multiplied weights are rounded to bfloat16, 7 bits of mantissa; their type stays.

    Returns whether any weight changed.
    """
    proto = read_model(model)
    changed = False
    for tensor in _float_weights(proto.graph):
        exact = numpy_helper.to_array(tensor)
        coarse = exact.astype(BF16).astype(exact.dtype)
        changed = changed or not np.array_equal(coarse, exact)
        tensor.CopyFrom(numpy_helper.from_array(coarse, tensor.name))
    write_model(proto, destination)
    return changed


def _float_weights(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    read = {name for node in graph.node if node.op_type in FLOAT_OPS for name in node.input}
    return (t for t in graph.initializer if t.name in read and t.data_type in WEIGHTS and len(t.dims) > 1)


def write_seven_bit(model: Path, destination: Path) -> bool:
    """Write a copy with 7-bit instead of 8-bit signed weights, whose sums saturate on no processor.

    Changes the integers that DequantizeLinear reads for a node's weights and bias, which has the weights' scale.
    Returns whether any weight changed.
    """
    proto = read_model(model)
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    pairs = {
        n.output[0]: n for n in proto.graph.node if n.op_type == "DequantizeLinear" and set(n.input) <= set(stored)
    }
    halved = set[str]()
    for node in proto.graph.node:
        read = [pairs[name] for name in node.input[1:3] if name in pairs]
        if not read or (read[0].output[0] not in halved and not _has_eight_bits(stored[read[0].input[0]])):
            continue
        for pair in read:
            if pair.output[0] not in halved:
                _halve(pair, proto.graph, stored)
                halved.add(pair.output[0])
    write_model(proto, destination)
    return bool(halved)


def _has_eight_bits(weights: onnx.TensorProto) -> bool:
    wide = weights.data_type == onnx.TensorProto.INT8
    return wide and int(np.abs(numpy_helper.to_array(weights).astype(np.int16)).max(initial=0)) > SEVEN_BIT


def _halve(pair: onnx.NodeProto, graph: onnx.GraphProto, stored: Mapping[str, onnx.TensorProto]) -> None:
    """Give a DequantizeLinear its own tensors with half the integers and twice the scale."""
    for place, name in enumerate(pair.input):
        old = numpy_helper.to_array(stored[name])
        new = old * 2 if place == 1 else np.rint(old / 2)
        pair.input[place] = f"{pair.output[0]}/{place}"
        graph.initializer.append(numpy_helper.from_array(new.astype(old.dtype), pair.input[place]))
