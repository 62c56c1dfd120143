"""Quantized and damaged files of one FP32 model, many of them near the limit of what may be lost.

Each damage with a size is bisected: all files tried on the way to the size that crosses the limit are kept.
"""

import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from gauntlet.calibration.activation_statistics import collect_statistics, open_calibrator
from gauntlet.calibration.methods import Entropy, MinMax, Percentile
from gauntlet.calibration.preparation import prepare_for_quantization
from gauntlet.calibration.ranges import Ranges
from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.artifact import Store
from gauntlet.core.errors import StageError
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import ArraySplit
from tasks.quantize.dynamic import DynamicInt8
from tasks.quantize.float16 import Float16
from tasks.quantize.static import StaticInt8

METHODS = (MinMax(), Entropy(), Percentile(percentile=99.9))
STATIC = (
    *(StaticInt8(per_channel=channel, calibration_method=m) for channel in (True, False) for m in METHODS),
    *(StaticInt8(activations="s8", per_channel=channel) for channel in (True, False)),
    *(StaticInt8(reduce_range=True), StaticInt8(activations="u16"), StaticInt8(symmetric=True)),
)
RECIPES: dict[str, Any] = {r.name: r for r in (*STATIC, DynamicInt8(), DynamicInt8(per_channel=True), Float16())}
BITS = (8, 7, 6, 5, 4, 3)
MOST = 3.0
"""Largest size of a damage, in standard deviations, or of what it is a share of."""
LEAST, TRIED = MOST / 1000, 6
"""Smallest size, and files of each damage that has a size."""
Change = Callable[[str, Array], Array]
"""From the name and the values of a stored tensor to other values."""


@dataclass(frozen=True)
class Source:
    """An FP32 model, prepared for quantization, and the ranges of its activations."""

    folder: Path
    ranges: Ranges
    proto: onnx.ModelProto

    @classmethod
    def of(cls, folder: Path, calibration: NamedArrays) -> "Source":
        """Prepare `model.onnx` and calibrate it."""
        split, prepared = ArraySplit(calibration), folder / "prepared.onnx"
        prepare_for_quantization(folder / "model.onnx", prepared)
        with tempfile.TemporaryDirectory() as temporary:
            calibrator, out = open_calibrator(prepared, Path(temporary)), Workspace(Store(folder), folder)
            statistics = collect_statistics(out, calibrator, split, len(split), with_counts=True)
        tensors = statistics.after[statistics.samples].items()
        methods = {method.name: {name: method.range_of(s) for name, s in tensors} for method in METHODS}
        ranges = Ranges.model_validate({"images": len(split), "methods": methods})
        return cls(folder, ranges, onnx.load(prepared))

    def quantized(self, name: str) -> onnx.ModelProto:
        """Return the model by one of the product's recipes."""
        target = self.folder / "quantized.onnx"
        RECIPES[name].quantize(self.folder / "model.onnx", self.folder / "prepared.onnx", self.ranges, target)
        return onnx.load(target)

    @property
    def weights(self) -> list[str]:
        """The names of the float weights of two or more axes."""
        return [t.name for t in self.proto.graph.initializer if t.data_type == 1 and len(t.dims) > 1]

    def with_weights(self, change: Change) -> onnx.ModelProto:
        """Return the model with other weights."""
        return with_stored(self.proto, dict.fromkeys(self.weights, change))


def with_stored(proto: onnx.ModelProto, changes: dict[str, Change]) -> onnx.ModelProto:
    """Return the model with other values of stored tensors, of the same types."""
    proto = onnx.ModelProto.FromString(proto.SerializeToString())
    for tensor in proto.graph.initializer:
        if tensor.name in changes:
            before = numpy_helper.to_array(tensor)
            after = changes[tensor.name](tensor.name, before).astype(before.dtype)
            tensor.CopyFrom(numpy_helper.from_array(after, tensor.name))
    return proto


def drawn(name: str) -> np.random.Generator:
    """Return a generator that depends on a name alone."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def rounded(values: Array, bits: int, axes: tuple[int, ...] | None) -> Array:
    """Return values on a symmetric grid of 2^bits - 1 levels, one over these axes."""
    step = np.abs(values).max(axis=axes, keepdims=True) / (2 ** (bits - 1) - 1)
    step = np.where(step == 0, 1, step)
    return np.asarray(np.round(values / step) * step)


def with_activations(quantized: onnx.ModelProto, levels: float = 1, reach: float = 1) -> onnx.ModelProto:
    """Return a Q/DQ model whose activations have this share of the levels, or of the ranges."""
    changes: dict[str, Change] = {}
    for node in quantized.graph.node:
        if node.op_type == "QuantizeLinear":
            _, scale, zero = node.input
            changes |= {scale: lambda _, step: step * reach / levels, zero: lambda _, middle: np.round(middle * levels)}
    return with_stored(quantized, changes)


def fixed_files(source: Source, static: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield files without a size: the product's recipes, fewer bits, and a lost channel."""
    for name in RECIPES:
        with suppress(StageError):
            yield name, source.quantized(name)
    for bits in BITS:
        yield f"{bits}-bit weights per tensor", source.with_weights(lambda _, w, b=bits: rounded(w, b, None))
        yield f"{bits}-bit weights", source.with_weights(lambda _, w, b=bits: rounded(w, b, (*range(1, w.ndim),)))
        yield f"{bits}-bit activations", with_activations(static, levels=(2**bits - 1) / 255)
    layer = source.weights[len(source.weights) // 2]
    for title, factor in (("sign of a channel", -1), ("dead channel", 0)):
        yield title, source.with_weights(lambda n, w, f=factor: np.r_[f * w[:1], w[1:]] if n == layer else w)


def damage_all(source: Source, loss_of: Callable[[str, onnx.ModelProto], float], limit: float) -> None:
    """Hand every file with its name to `loss_of`, which keeps it and returns what it loses."""
    static, change = source.quantized("static-u8s8"), source.with_weights
    layer = source.weights[int(drawn("layer").integers(len(source.weights)))]

    def noise(name: str, weight: Array, size: float) -> Array:
        return np.asarray(weight + size * weight.std() * drawn(name).standard_normal(weight.shape))

    damages: dict[str, Callable[[float], onnx.ModelProto]] = {
        "noise on all weights": lambda size: change(lambda n, w: noise(n, w, size)),
        "noise on one layer": lambda size: change(lambda n, w: noise(n, w, size * (n == layer))),
        "dead weights": lambda size: change(lambda n, w: w * (drawn(n).random(w.shape) >= size / MOST)),
        "clipped activations": lambda size: with_activations(static, reach=max(1 - size / MOST, 0.02)),
    }
    for name, proto in fixed_files(source, static):
        loss_of(name, proto)
    for name, damage in damages.items():
        low, high = LEAST, MOST
        for _ in range(TRIED):
            size = (low * high) ** 0.5
            bad = loss_of(f"{name}, {size:.3g}", damage(size)) > limit
            low, high = (low, size) if bad else (size, high)
