"""Dynamic quantization: activations at each call. Fast for matrix products, not for convolutions."""

import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from onnxruntime.quantization import QuantType, quantize_dynamic
from pydantic import Field

from gauntlet.calibration.ranges import Ranges
from gauntlet.core.frozen import Frozen
from gauntlet.onnx_model.model_file import copy_into, is_large_file

TYPES = {"u8": QuantType.QUInt8, "s8": QuantType.QInt8}
OPERATORS = {"all": None, "matmul": ["MatMul"]}  # the quantizer first turns every Gemm into a MatMul and an Add


class DynamicInt8(Frozen):
    """8-bit weights; activation ranges are computed at each call."""

    kind: Literal["dynamic"] = "dynamic"
    weights: Literal["u8", "s8"] = Field("u8", description="data type of the weights")
    op_types: Literal["all", "matmul"] = Field("all", description="all supported operators, or only MatMul and Gemm")
    reduce_range: bool = Field(False, description="7-bit weights: no saturation on processors without VNNI")

    @property
    def name(self) -> str:
        """The candidate's name."""
        marks = {"matmul": self.op_types == "matmul", "7bit": self.reduce_range}
        return "-".join([f"dynamic-{self.weights}", *(mark for mark, applies in marks.items() if applies)])

    def quantize(
        self, model: Path, prepared: Path | None, ranges: Ranges | None, target: Path, float_nodes: Collection[str] = ()
    ) -> None:
        """Quantize `model` to `target`; `prepared` and `ranges` are not used."""
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            quantize_dynamic(
                copy_into(model, Path(folder)),
                target,
                op_types_to_quantize=OPERATORS[self.op_types],
                reduce_range=self.reduce_range,
                weight_type=TYPES[self.weights],
                nodes_to_exclude=sorted([*float_nodes, *(f"{name}_MatMul" for name in float_nodes)]),
                use_external_data_format=is_large_file(model),
            )
