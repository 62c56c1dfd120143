"""Weight-only quantization: 4- or 8-bit weights, a scale for each block of them; all between products stays float."""

import logging
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar, Literal

import onnx
from onnx import TensorProto
from onnxruntime.quantization.onnx_model import ONNXModel
from pydantic import Field

from gauntlet.calibration.quantizer_input import mend_graph
from gauntlet.calibration.ranges import Ranges
from gauntlet.onnx_model.model_file import read_model, write_model
from tasks.quantize.base import Recipe
from tasks.quantize.left_out import LeftOut, quantize_what_works

ACCURACY_LEVELS = {"f32": 1, "s8": 4}
"""`accuracy_level` of the operator MatMulNBits: the type that activations may be rounded to within a product."""
PRODUCTS = ("MatMul", "Gemm")


class WeightOnly(Recipe):
    """Weights of matrix products in 8 or 4 bits, as `MatMulNBits`: small files, for products larger than the caches.

    Needs no calibration and no VNNI; runs in ONNX Runtime alone.
    """

    kind: Literal["weight-only"] = "weight-only"
    bits: Literal[4, 8] = Field(8, description="of a weight")
    block_size: Literal[16, 32, 64, 128, 256] = Field(32, description="weights of a column that share a scale")
    activations: Literal["s8", "f32"] = Field("s8", description="what a product computes in; s8 is faster")
    symmetric: bool = Field(False, description="weight ranges symmetric around zero")
    min_weights: int = Field(4096, ge=1, description="products with fewer weights stay float")
    takes_fused_attention: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The candidate's name: the bits, and each setting that is not the default."""
        marks = {
            f"block{self.block_size}": self.block_size != 32,
            self.activations: self.activations != "s8",
            "symmetric": self.symmetric,
            f"from{self.min_weights}": self.min_weights != 4096,
        }
        return "-".join([f"weight-only-{self.bits}bit", *(mark for mark, applies in marks.items() if applies)])

    def quantize(
        self, model: Path, prepared: Path | None, ranges: Ranges | None, target: Path, float_nodes: Collection[str] = ()
    ) -> LeftOut:
        """Quantize `model` to `target`; `prepared` and `ranges` are not used. Return the products it leaves in float.

        Raises:
            StageError: when ONNX Runtime's quantizer fails.
        """
        proto = read_model(model)
        mend_graph(proto)
        unsuited = self._unsuited(proto.graph)

        def write(left_out: Collection[str]) -> None:
            copy = onnx.ModelProto()
            copy.CopyFrom(proto)
            write_model(self._quantized(copy, {*float_nodes, *left_out}), target)

        return quantize_what_works(write, target, proto.graph, unsuited)

    def _quantized(self, proto: onnx.ModelProto, excluded: Collection[str]) -> onnx.ModelProto:
        made = ONNXModel(proto)
        made.replace_gemm_with_matmul()
        quantizer = _quantizer_class()(
            made.model,
            bits=self.bits,
            block_size=self.block_size,
            is_symmetric=self.symmetric,
            accuracy_level=ACCURACY_LEVELS[self.activations],
            nodes_to_exclude=sorted([*excluded, *(f"{name}_MatMul" for name in excluded)]),
        )
        quantizer.process()
        after: onnx.ModelProto = quantizer.model.model
        stored = {tensor.name: tensor for tensor in after.graph.initializer}  # it stores shared weights once a reader
        del after.graph.initializer[:]
        after.graph.initializer.extend(stored.values())
        return after

    def _unsuited(self, graph: onnx.GraphProto) -> dict[str, str]:
        """Return the products that stay in float -> the reason."""
        stored = {tensor.name: tensor for tensor in graph.initializer}
        reasons = {n.name: self._why_not(n, stored.get(n.input[1])) for n in graph.node if n.op_type in PRODUCTS}
        return {name: why for name, why in reasons.items() if why}

    def _why_not(self, node: onnx.NodeProto, weights: onnx.TensorProto | None) -> str:
        if weights is None:
            return "both inputs are computed, so there are no weights to store"
        if weights.data_type != TensorProto.FLOAT:
            return "its weights are not float32"
        if len(weights.dims) != 2:
            return f"its weights have {len(weights.dims)} axes; blocks need 2"
        if (count := math.prod(weights.dims)) < self.min_weights:
            return f"it has {count:,} weights; min_weights is {self.min_weights:,}"
        return ""


def _quantizer_class() -> Any:
    """Return ONNX Runtime's class, whose module sets up logging for the whole process when it is imported."""
    root, silent = logging.getLogger(), logging.NullHandler()
    root.addHandler(silent)  # with a handler, logging counts as set up
    try:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    finally:
        root.removeHandler(silent)
    return MatMulNBitsQuantizer
