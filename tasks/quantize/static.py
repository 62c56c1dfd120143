"""Static quantization: weights and activations, with the ranges from the calibration stage."""

import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import onnx
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
from pydantic import Field, model_validator

from gauntlet.calibration.methods import MinMax
from gauntlet.calibration.ranges import Method, Ranges
from gauntlet.core.arrays import Array
from gauntlet.core.errors import StageError
from gauntlet.onnx_model.graph import attributes_of, opset_versions
from gauntlet.onnx_model.model_file import copy_model, is_large_file, read_graph
from gauntlet.onnx_model.normalization.opset import PER_CHANNEL_OPSET
from gauntlet.onnx_model.operator_types import FLOAT_OPS
from gauntlet.runtime.processor import Processor
from tasks.quantize.base import Recipe
from tasks.quantize.left_out import (
    LeftOut,
    quantize_what_works,
    without_channels,
    without_own_range,
    without_ranges,
)

FORMATS = {"qdq": QuantFormat.QDQ, "qoperator": QuantFormat.QOperator}
PRODUCTS = ["Conv", "ConvTranspose", "Gemm", "MatMul"]
TYPES = {"u8": QuantType.QUInt8, "s8": QuantType.QInt8, "u16": QuantType.QUInt16}


class StaticInt8(Recipe):
    """Integer weights and activations. On x86-64, only unsigned 8-bit activations run in fast integer kernels."""

    kind: Literal["static"] = "static"
    format: Literal["qdq", "qoperator"] = Field(
        "qdq", description="qdq: Q/DQ nodes, which the runtime fuses; qoperator: integer operators in the file"
    )
    activations: Literal["u8", "s8", "u16"] = Field("u8", description="data type of the activations")
    weights: Literal["u8", "s8"] = Field("s8", description="data type of the weights")
    per_channel: bool = Field(True, description="one weight range per output channel")
    calibration_method: Method = Field(default_factory=MinMax, description="how the activation ranges are computed")
    symmetric: bool = Field(False, description="activation ranges symmetric around zero")
    reduce_range: bool = Field(
        False,
        description="no sum overflows on processors without VNNI: coarser scales for output channels in which "
        "neighboring weights are large together (qdq), or 7-bit weights (qoperator)",
    )
    float_head: bool = Field(False, description="keep the last convolutions or products, and all after them, in float")
    qdq_placement: Literal["inputs_and_outputs", "inputs"] = Field(
        "inputs_and_outputs",
        description="Q/DQ around every operator (ONNX Runtime), or before products and sums (OpenVINO, TensorRT)",
    )

    @property
    def name(self) -> str:
        """The candidate's name: the data types, and each setting that is not the default."""
        marks = {
            "qoperator": self.format == "qoperator",
            "per-tensor": not self.per_channel,
            self.calibration_method.name: self.calibration_method.kind != "minmax",
            "symmetric": self.symmetric,
            "no-overflow": self.reduce_range,
            "float-head": self.float_head,
            "inputs": self.qdq_placement == "inputs",
        }
        return "-".join([f"static-{self.activations}{self.weights}", *(m for m, applies in marks.items() if applies)])

    def without_saturation(self, processor: Processor) -> Self:
        """Return the recipe with `reduce_range` where its sums would saturate on a processor, else as it is."""
        both_signed = self.format == "qoperator" and self.activations == "s8"  # another kernel, with exact sums
        saturates = processor.saturates and self.weights == "s8" and not both_signed
        return self.replace(reduce_range=self.reduce_range or saturates)

    @model_validator(mode="after")
    def _is_supported(self) -> Self:
        if (self.activations, self.weights) == ("s8", "u8"):
            raise ValueError("ONNX Runtime has no kernels for activations s8 with weights u8; use weights s8")
        if self.qdq_placement == "inputs" and self.format == "qoperator":
            raise ValueError("qdq_placement inputs requires format qdq: integer operators also round their outputs")
        if self.activations == "u16" and self.format == "qoperator":
            raise ValueError("no integer operators exist for activations u16; use format qdq")
        return self

    def quantize(
        self, model: Path, prepared: Path | None, ranges: Ranges | None, target: Path, float_nodes: Collection[str] = ()
    ) -> LeftOut:
        """Quantize `prepared`, which has the nodes `float_nodes`, to `target`; return the nodes it had to leave out.

        Raises StageError without ranges, or when ONNX Runtime's quantizer fails.
        """
        if prepared is None or ranges is None:
            reason = "the calibration failed, or the data has no split 'calibration'"
            raise StageError(f"static quantization needs activation ranges; {reason}")
        proto = read_graph(prepared)
        chosen = set(head_nodes(proto.graph) if self.float_head else ()).union(float_nodes)
        known, source = ranges.methods.get(self.calibration_method.name, {}), prepared
        limits = without_own_range(proto.graph, integer_operators=self.format == "qoperator")
        left_out = without_ranges(proto.graph, known) | limits
        left_out |= without_channels(proto.graph) if self.per_channel else {}

        def write(left_out: Collection[str]) -> None:
            self._write(source, ranges, target, chosen.union(left_out), proto)

        return quantize_what_works(write, target, proto.graph, left_out)

    def _write(
        self, prepared: Path, ranges: Ranges, target: Path, excluded: Collection[str], proto: onnx.ModelProto
    ) -> None:
        convolutions = ["Conv" in node.op_type for node in proto.graph.node if node.op_type in PRODUCTS]
        sums = ["Add"] if 2 * sum(convolutions) > len(convolutions) else []  # those of a transformer carry its outliers
        input_only_ops = [*PRODUCTS, *sums] if self.qdq_placement == "inputs" else []
        if input_only_ops:  # runtimes fuse a sum with a constant, as of a bias or a hard swish, unless it is rounded
            stored = {tensor.name for tensor in proto.graph.initializer}
            plain = (n.name for n in proto.graph.node if n.op_type == "Add" and not stored.isdisjoint(n.input))
            excluded = {*excluded, *plain}
        old = opset_versions(proto).get("ai.onnx", 0) < PER_CHANNEL_OPSET  # of Q/DQ operators for all channels alone
        exact = self.reduce_range and self.weights == "s8" and self.format == "qdq"
        scales = scales_without_overflow(proto.graph, per_channel=self.per_channel) if exact else {}
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            copy = Path(folder) / prepared.name  # ONNX Runtime's quantizer writes beside it
            copy_model(prepared, copy)
            quantize_static(
                copy,
                target,
                quant_format=FORMATS[self.format],
                per_channel=self.per_channel,
                reduce_range=self.reduce_range,
                activation_type=TYPES[self.activations],
                weight_type=TYPES[self.weights],
                op_types_to_quantize=input_only_ops or None,
                nodes_to_exclude=sorted(excluded),
                use_external_data_format=is_large_file(prepared),
                calibrate_method=CalibrationMethod.MinMax,  # see `Ranges.write_for_ort`
                calibration_cache_path=ranges.write_for_ort(self.calibration_method.name, Path(folder) / "ranges.json"),
                extra_options={
                    "ActivationSymmetric": self.symmetric,
                    "OpTypesToExcludeOutputQuantization": input_only_ops,
                    "UseQDQContribOps": self.per_channel and old,
                    "TensorQuantOverrides": scales,
                },
            )


def head_nodes(graph: onnx.GraphProto) -> frozenset[str]:
    """Return the names of the last convolutions and matrix products before the outputs, and of all nodes after them.

    No later layer averages out rounding errors of these nodes, and one range covers the outputs of all classes.
    """
    producers = {name: node for node in graph.node for name in node.output if name}
    head, pending = dict[str, onnx.NodeProto](), [output.name for output in graph.output]
    while pending:
        node = producers.get(pending.pop())
        if node is not None and node.name not in head:
            head[node.name] = node
            pending += [] if node.op_type in FLOAT_OPS else node.input
    return frozenset(head)


LARGEST = 127
"""Of a weight, and of the sum of two neighbors: rounding may add 1, and 255 * 128 is below 32767."""


def scales_without_overflow(graph: onnx.GraphProto, *, per_channel: bool) -> dict[str, list[dict[str, Any]]]:
    """Return `TensorQuantOverrides` with which no 16-bit sum of two products overflows on a processor without VNNI.

    There, ONNX Runtime's kernels (QgemmU8S8KernelAvx2.S and its like) add the products of two neighbors along the
    summed axis in an int16. ONNX Runtime's `reduce_range` halves every weight. Only an output channel in which two
    neighbors of one sign are large together needs a coarser scale, and a depthwise convolution, whose kernel does not
    add pairs, none. The overrides are for the weights of products, by initializer.

    A weight that several nodes use has the coarsest of their scales, and none here if their output channels differ.
    """
    stored, uses = {tensor.name: tensor for tensor in graph.initializer}, dict[str, list[tuple[int, Array]]]()
    for node, axis in _products(graph):
        weights = stored.get(node.input[1])
        if weights is not None and (node.op_type == "Conv" or len(weights.dims) == 2):
            uses.setdefault(weights.name, []).append((axis, _largest(node, numpy_helper.to_array(weights))))
    overrides = {}
    for name, pairs in uses.items():
        axes, largest = {axis for axis, _ in pairs}, [values for _, values in pairs]
        if not per_channel:
            overrides[name] = [_scale(max(float(values.max()) for values in largest))]
        elif len(axes) == 1:
            overrides[name] = [{**_scale(value), "axis": min(axes)} for value in np.max(largest, axis=0)]
    return overrides


def _scale(largest: float) -> dict[str, Any]:
    scale = np.float32(largest / LARGEST)
    return {"scale": scale if scale >= np.finfo(np.float32).tiny else np.float32(1), "zero_point": np.int8(0)}


def _products(graph: onnx.GraphProto) -> Iterator[tuple[onnx.NodeProto, int]]:
    """Yield the nodes that become integer products, and the axis of their weights' output channels."""
    for node in graph.node:
        if node.op_type == "Conv":
            yield node, 0
        elif node.op_type in ("Gemm", "MatMul"):
            yield node, 0 if attributes_of(node).get("transB") else 1


def _largest(node: onnx.NodeProto, weights: Array) -> Array:
    """Return the largest weight or sum of two neighbors of one sign, by output channel, in the kernel's order."""
    if node.op_type == "Conv":
        rows = np.moveaxis(weights, 1, -1).reshape(len(weights), -1).T
        if weights.shape[1] == 1 and attributes_of(node).get("group", 1) == len(weights):  # depthwise
            return np.asarray(np.abs(rows).max(axis=0))
    else:
        rows = weights.T if attributes_of(node).get("transB") else weights
    pairs = np.concatenate([rows, np.zeros_like(rows[: len(rows) % 2])])
    high, low = (np.maximum(sign * pairs, 0) for sign in (1, -1))
    return np.asarray(np.maximum((high[0::2] + high[1::2]).max(axis=0), (low[0::2] + low[1::2]).max(axis=0)))
