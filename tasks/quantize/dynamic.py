"""Dynamic quantisation: weights now, activations at each call. Made for matrix products; convolutions suffer."""

import tempfile
from pathlib import Path
from typing import Literal

from onnxruntime.quantization import QuantType, quantize_dynamic
from pydantic import Field

from tasks.frozen import Frozen
from tasks.model_file import is_large_file
from tasks.quantize.copied import copied
from tasks.ranges import Ranges

TYPES = {"u8": QuantType.QUInt8, "s8": QuantType.QInt8}
OPERATORS = {"all": None, "matmul": ["MatMul"]}
"""The quantiser turns every Gemm into a MatMul and an Add before it looks at the list."""


class DynamicInt8(Frozen):
    """Weights in 8 bits, activation ranges found at each call."""

    kind: Literal["dynamic"] = "dynamic"
    weights: Literal["u8", "s8"] = Field("u8", description="type of the weights")
    operators: Literal["all", "matmul"] = Field("all", description="all that can be, or MatMul and Gemm only")
    reduce_range: bool = Field(False, description="7-bit weights: no saturation on processors without VNNI")

    @property
    def name(self) -> str:
        """The candidate's name."""
        marks = {"matmul": self.operators == "matmul", "7bit": self.reduce_range}
        return "-".join([f"dynamic-{self.weights}", *(mark for mark, is_so in marks.items() if is_so)])

    def write(
        self,
        model: Path,
        prepared: Path | None,
        ranges: Ranges | None,
        target: Path,
        *,
        float_nodes: frozenset[str] = frozenset(),
    ) -> None:
        """Quantise `model` to `target`; neither ranges nor a prepared model are needed."""
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            quantize_dynamic(
                copied(model, Path(folder)),
                target,
                op_types_to_quantize=OPERATORS[self.operators],
                reduce_range=self.reduce_range,
                weight_type=TYPES[self.weights],
                nodes_to_exclude=sorted(float_nodes | {f"{name}_MatMul" for name in float_nodes}),
                use_external_data_format=is_large_file(model),
            )
