"""Static quantisation: weights and activations, with the ranges that the calibration found."""

import tempfile
from pathlib import Path
from typing import Literal, Self

import onnx
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
from pydantic import Field, model_validator

from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.model_file import is_large_file, read_graph
from tasks.quantize.copied import copied
from tasks.ranges import Method, Ranges
from tasks.ranges.minmax import MinMax
from tasks.runtime.engines.ort import FLOAT

FORMATS = {"qdq": QuantFormat.QDQ, "qoperator": QuantFormat.QOperator}
PRODUCTS_AND_SUMS = ["Conv", "ConvTranspose", "Gemm", "MatMul", "Add"]
TYPES = {"u8": QuantType.QUInt8, "s8": QuantType.QInt8, "u16": QuantType.QUInt16}


class StaticInt8(Frozen):
    """Integer weights and activations. On x86-64 only unsigned 8-bit activations become fast integer kernels."""

    kind: Literal["static"] = "static"
    format: Literal["qdq", "qoperator"] = Field(
        "qdq", description="QuantizeLinear and DequantizeLinear that the runtime fuses, or integer operators at once"
    )
    activations: Literal["u8", "s8", "u16"] = Field("u8", description="type of the activations")
    weights: Literal["u8", "s8"] = Field("s8", description="type of the weights")
    per_channel: bool = Field(True, description="one weight range an output channel")
    method: Method = Field(default_factory=MinMax, description="how the activations' ranges are found")
    symmetric: bool = Field(False, description="activation ranges with zero in the middle")
    reduce_range: bool = Field(False, description="7-bit weights: no saturation on processors without VNNI")
    float_head: bool = Field(False, description="the last products before the outputs, and what follows, stay in float")
    placement: Literal["around", "inputs"] = Field(
        "around",
        description="where tensors are rounded: around every operator, as ONNX Runtime's integer kernels want it, or "
        "only in front of products and sums, for OpenVINO and TensorRT, which fuse what is between by themselves",
    )

    @property
    def name(self) -> str:
        """The candidate's name: the types, and whatever is not the default."""
        marks = {
            "qoperator": self.format == "qoperator",
            "per-tensor": not self.per_channel,
            self.method.name: self.method.kind != "minmax",
            "symmetric": self.symmetric,
            "7bit": self.reduce_range,
            "float-head": self.float_head,
            "inputs": self.placement == "inputs",
        }
        return "-".join([f"static-{self.activations}{self.weights}", *(mark for mark, is_so in marks.items() if is_so)])

    @model_validator(mode="after")
    def _is_supported(self) -> Self:
        if (self.activations, self.weights) == ("s8", "u8"):
            raise ValueError("there are no kernels for activations s8 with weights u8; take weights s8")
        if self.placement == "inputs" and self.format == "qoperator":
            raise ValueError("integer operators are rounded around; for placement inputs, take format qdq")
        if self.activations == "u16" and self.format == "qoperator":
            raise ValueError("there are no integer operators for activations u16; take format qdq")
        return self

    def write(
        self,
        model: Path,
        prepared: Path | None,
        ranges: Ranges | None,
        target: Path,
        *,
        float_nodes: frozenset[str] = frozenset(),
    ) -> None:
        """Quantise the prepared model to `target`; `float_nodes` are named as there.

        Raises:
            StageError: when there are no ranges, or none of the method.
        """
        if prepared is None or ranges is None:
            raise StageError(
                "static quantisation needs ranges; the calibration failed, or the data has no split 'calibration'"
            )
        only_inputs = PRODUCTS_AND_SUMS if self.placement == "inputs" else []
        kept = float_nodes | (head(read_graph(prepared).graph) if self.float_head else frozenset())
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            quantize_static(
                copied(prepared, Path(folder)),
                target,
                quant_format=FORMATS[self.format],
                per_channel=self.per_channel,
                reduce_range=self.reduce_range,
                activation_type=TYPES[self.activations],
                weight_type=TYPES[self.weights],
                op_types_to_quantize=only_inputs or None,
                nodes_to_exclude=sorted(kept),
                use_external_data_format=is_large_file(prepared),
                calibrate_method=CalibrationMethod.MinMax,  # see `Ranges.write_for_ort`
                calibration_cache_path=ranges.write_for_ort(self.method.name, Path(folder) / "ranges.json"),
                extra_options={
                    "ActivationSymmetric": self.symmetric,
                    "OpTypesToExcludeOutputQuantization": only_inputs,
                },
            )


def head(graph: onnx.GraphProto) -> frozenset[str]:
    """Return the names of the nodes behind which no convolution or matrix product follows, and of those themselves.

    What is rounded there is rounded for good: nothing behind it averages the error out, and the outputs' range is that
    of all classes together.
    """
    makers = {name: node for node in graph.node for name in node.output}
    found, waiting = dict[str, onnx.NodeProto](), [output.name for output in graph.output]
    while waiting:
        node = makers.get(waiting.pop())
        if node is not None and node.name not in found:
            found[node.name] = node
            waiting += [] if node.op_type in FLOAT else node.input
    return frozenset(found)
