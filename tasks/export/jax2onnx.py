"""jax2onnx: Flax networks as plain ONNX operators."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from tasks.frozen import Frozen
from tasks.signature import Signature
from tasks.sources import flax as source


class Jax2Onnx(Frozen):
    """`jax2onnx.to_onnx` with a symbolic batch."""

    kind: Literal["jax2onnx"] = "jax2onnx"
    opset: int = Field(18, ge=15, le=23, description="ONNX operator set")

    takes: ClassVar[str] = "flax"
    packages: ClassVar[dict[str, str]] = {"flax": "jax", "jax2onnx": "jax"}

    def write(self, model: Path, signature: Signature, path: Path) -> None:
        """Export the network saved in `model` to `path`; pictures that come in as NCHW are transposed in the graph."""
        source.use_cpu()
        import jax2onnx
        import onnx

        network, recipe = source.load(model)
        proto = jax2onnx.to_onnx(
            network,
            [("batch", recipe.height, recipe.width, recipe.channels)],
            model_name="flax",
            opset=self.opset,
            inputs_as_nchw=[0] if recipe.layout == "NCHW" else None,
            input_names=[signature.inputs[0].name],
            output_names=[signature.outputs[0].name],
        )
        # It moves transpositions about, and leaves the shapes that inner tensors had before: let readers infer them.
        del proto.graph.value_info[:]
        onnx.save(proto, path)
