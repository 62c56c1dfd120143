"""Dynamic quantization: activations at each call. Fast for matrix products, not for convolutions."""

import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import ClassVar, Literal

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic
from pydantic import Field

from gauntlet.calibration.quantizer_input import mend_graph
from gauntlet.calibration.ranges import Ranges
from gauntlet.onnx_model.model_file import is_large_file, read_model, write_model
from tasks.quantize.base import Recipe
from tasks.quantize.left_out import LeftOut, quantize_what_works, without_channels, without_stored_weights

TYPES = {"u8": QuantType.QUInt8, "s8": QuantType.QInt8}
OPERATORS = {"all": None, "matmul": ["MatMul"]}  # the quantizer first turns every Gemm into a MatMul and an Add


class DynamicInt8(Recipe):
    """8-bit weights; activation ranges are computed at each call."""

    kind: Literal["dynamic"] = "dynamic"
    weights: Literal["u8", "s8"] = Field("u8", description="data type of the weights")
    op_types: Literal["all", "matmul"] = Field("all", description="all supported operators, or only MatMul and Gemm")
    reduce_range: bool = Field(False, description="7-bit weights: no saturation on processors without VNNI")
    per_channel: bool = Field(False, description="a scale for each output channel of a matrix product's weights")
    takes_fused_attention: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The candidate's name."""
        marks = {"matmul": self.op_types == "matmul", "7bit": self.reduce_range, "channel": self.per_channel}
        return "-".join([f"dynamic-{self.weights}", *(mark for mark, applies in marks.items() if applies)])

    def quantize(
        self, model: Path, prepared: Path | None, ranges: Ranges | None, target: Path, float_nodes: Collection[str] = ()
    ) -> LeftOut:
        """Quantize `model` to `target`; `prepared` and `ranges` are not used. Return the nodes it had to leave out.

        Raises:
            StageError: when ONNX Runtime's quantizer fails.
        """
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            source = Path(folder) / "mended.onnx"
            proto = read_model(model)
            mend_graph(proto)
            write_model(proto, source)

            def write(left_out: Collection[str]) -> None:
                excluded = {*float_nodes, *left_out}
                quantize_dynamic(
                    source,
                    target,
                    op_types_to_quantize=OPERATORS[self.op_types],
                    per_channel=self.per_channel,
                    reduce_range=self.reduce_range,
                    weight_type=TYPES[self.weights],
                    nodes_to_exclude=sorted([*excluded, *(f"{name}_MatMul" for name in excluded)]),
                    use_external_data_format=is_large_file(model),
                    # ONNX infers no types behind ONNX Runtime's own operators; recipes take float32 models only.
                    extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
                )

            left_out = without_stored_weights(proto.graph) | (without_channels(proto.graph) if self.per_channel else {})
            return quantize_what_works(write, target, proto.graph, left_out)
