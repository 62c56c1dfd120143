"""tf2onnx on a Keras network, without a detour; a SavedModel goes the way that `saved-model` does."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from tasks.export.tf_graph import NEWEST_OPSET, converting, from_saved_model, pictures, signed
from tasks.frozen import Frozen
from tasks.signature import Signature
from tasks.sources.keras import files
from tasks.sources.keras.answers import of_network


class Tf2Onnx(Frozen):
    """`tf2onnx.convert.from_keras`. Where the signature says NCHW, the graph begins with the transposition to NHWC."""

    kind: Literal["tf2onnx"] = "tf2onnx"
    opset: int = Field(18, ge=13, le=NEWEST_OPSET, description="ONNX operator set; 18 is the newest of this exporter")

    takes: ClassVar[str] = "keras"
    packages: ClassVar[dict[str, str]] = {"keras": "tensorflow", "tensorflow": "tensorflow", "tf2onnx": "tensorflow"}

    def write(self, model: Path, signature: Signature, path: Path) -> None:
        """Convert the network saved in `model` to `path`.

        Raises:
            StageError: when tf2onnx cannot.
        """
        import onnx

        if model.suffix == files.SAVED_MODEL:
            from_saved_model(model, signature, path, self.opset)
            return
        network = files.load(model)
        names = [*of_network(network).names(signature).values()]
        with converting() as tf2onnx:
            import tensorflow as tf

            inputs = [
                tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype, name=name)
                for name, tensor in zip(names, network.inputs, strict=True)
            ]
            proto, _ = tf2onnx.convert.from_keras(
                network,
                input_signature=inputs if len(inputs) == 1 else [inputs],
                opset=self.opset,
                inputs_as_nchw=pictures(signature),
            )
        onnx.save(signed(proto, names, signature), path)
