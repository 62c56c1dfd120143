"""The fusions of `onnxruntime.transformers`: attention, layer normalization with its residual sum, and GELU."""

from typing import ClassVar, Literal

import onnx
from pydantic import Field

from gauntlet.onnx_model.graph import opset_versions
from gauntlet.onnx_model.recognition import has_attention
from tasks.optimize.in_memory_pass import InMemoryPass

CONTRIB = "com.microsoft"


class TransformerFusions(InMemoryPass):
    """Fuse an encoder's attention, layer normalization and GELU into ONNX Runtime's own operators.

    A graph without attention stays as it is. The fused operators run in ONNX Runtime; few other runtimes know them.
    """

    kind: Literal["transformers"] = "transformers"
    attention: Literal["separate", "packed"] = Field(
        "separate", description="packed: the products of queries, keys and values join the attention"
    )
    fuses_attention: ClassVar[bool] = True
    if_unchanged: ClassVar[str] = "the graph has no attention, or none in a form that ONNX Runtime fuses"

    @property
    def name(self) -> str:
        """The candidate's name."""
        return "transformers" if self.attention == "separate" else f"transformers-{self.attention}"

    @property
    def keeps_products(self) -> bool:
        """Whether recipes can quantize the products of the fused model."""
        return self.attention == "separate"

    def transform(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """Return the fused model; as it is without attention."""
        if not has_attention(proto.graph):
            return proto
        from onnxruntime.transformers.fusion_options import FusionOptions
        from onnxruntime.transformers.optimizer import optimize_by_fusion

        options = FusionOptions("bert")  # the fusions of encoders, of images too
        options.use_raw_attention_mask()  # the other form assumes that padding is on the right
        options.use_multi_head_attention = self.attention == "separate"
        fused: onnx.ModelProto = optimize_by_fusion(proto, "bert", optimization_options=options).model
        if CONTRIB not in opset_versions(fused):
            fused.opset_import.add(domain=CONTRIB, version=1)
        return fused
