"""jax2onnx: export Flax networks to standard ONNX operators."""

from pathlib import Path
from typing import ClassVar, Literal

import onnx
from pydantic import Field

from gauntlet.core.frozen import Frozen
from gauntlet.core.signature import Signature
from gauntlet.frameworks.flax import network as flax_network


class Jax2Onnx(Frozen):
    """`jax2onnx.to_onnx` with a symbolic batch."""

    kind: Literal["jax2onnx"] = "jax2onnx"
    opset: int = Field(18, ge=15, le=23, description="ONNX operator set")

    framework: ClassVar[str] = "flax"
    packages: ClassVar[dict[str, str]] = {"flax": "jax", "jax2onnx": "jax"}

    def write(self, model: Path, signature: Signature, path: Path) -> None:
        """Export the network saved in `model` to `path`; the graph transposes NCHW inputs."""
        flax_network.use_cpu()
        import jax2onnx

        network, spec = flax_network.load(model)
        proto = jax2onnx.to_onnx(
            network,
            [("batch", spec.height, spec.width, spec.channels)],
            model_name="flax",
            opset=self.opset,
            inputs_as_nchw=[0] if spec.layout == "NCHW" else None,
            input_names=[signature.inputs[0].name],
            output_names=[signature.outputs[0].name],
        )
        # jax2onnx moves transposes but keeps the old shapes of intermediate tensors; shape inference restores them.
        del proto.graph.value_info[:]
        onnx.save(proto, path)
