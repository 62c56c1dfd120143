"""tf2onnx on a Keras network; a SavedModel is converted as by `saved-model`."""

import tempfile
from pathlib import Path
from typing import Any, Literal

import onnx

from frameworks.keras.conversion import converting, inlined_functions
from frameworks.keras.exporter import TensorFlowExport, apply_signature, convert_folder, nchw_images
from frameworks.keras.model import from_network, functional, package_of
from gauntlet.core.signature import Signature


class Tf2Onnx(TensorFlowExport):
    """`tf2onnx.convert.from_keras`. If the signature's layout is NCHW, the graph first transposes to NHWC."""

    kind: Literal["tf2onnx"] = "tf2onnx"

    def from_network(self, network: Any, signature: Signature, path: Path) -> None:
        """Convert the network without a SavedModel."""
        names = [*from_network(network).names(signature).values()]
        with converting() as tf2onnx:
            import tensorflow as tf

            inputs = [
                tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype, name=name)
                for name, tensor in zip(names, network.inputs, strict=True)
            ]
            proto, _ = tf2onnx.convert.from_keras(
                functional(network),
                input_signature=inputs if len(inputs) == 1 else [inputs],
                opset=self.opset,
                inputs_as_nchw=nchw_images(signature),
            )
        onnx.save(apply_signature(proto, names, signature), path)


class SavedModel(TensorFlowExport):
    """`model.export(folder)`, then what `tf2onnx.convert --saved-model folder` does."""

    kind: Literal["saved-model"] = "saved-model"

    def from_network(self, network: Any, signature: Signature, path: Path) -> None:
        """Write a SavedModel first."""
        with tempfile.TemporaryDirectory() as folder:
            with inlined_functions():
                options = (
                    {} if package_of(network).__name__ == "tf_keras" else {"format": "tf_saved_model", "verbose": False}
                )
                network.export(folder, **options)
            convert_folder(Path(folder), "serving_default", signature, path, self.opset)
