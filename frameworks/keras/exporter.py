"""Export with tf2onnx: a Keras network, or a SavedModel's graph, with the signature's names in it."""

import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Literal

import onnx
from pydantic import Field

from frameworks.graph_interface import rename_tensors, set_shapes
from frameworks.keras import files
from frameworks.keras.conversion import converting, inlined_functions, pad_as_tensorflow, require_converted
from frameworks.keras.model import from_network, from_saved_model, functional, package_of
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature
from tasks.export.base import Exporter

UNNAMED = "unk__"  # prefix of tf2onnx's names of dynamic axes


class TensorFlowExport(Exporter, ABC):
    """An exporter of TensorFlow models; both convert a SavedModel in the same way."""

    opset: int = Field(18, ge=13, le=18, description="ONNX operator set; 18 is the newest of this exporter")

    framework: ClassVar[str] = "keras"
    packages: ClassVar[dict[str, str]] = {"keras": "tensorflow", "tensorflow": "tensorflow", "tf2onnx": "tensorflow"}

    def write(self, model: Path, signature: Signature, path: Path) -> None:
        """Convert the model saved in `model` to `path`. Raises StageError when tf2onnx cannot convert it."""
        if model.suffix != files.SAVED_MODEL:
            self.from_network(files.load(model, trust=True), signature, path)
            return
        with tempfile.TemporaryDirectory() as folder:
            key = files.unpack_saved_model(model, Path(folder))
            convert_folder(Path(folder), key, signature, path, self.opset)

    @abstractmethod
    def from_network(self, network: Any, signature: Signature, path: Path) -> None:
        """Convert a Keras network to `path`."""


def convert_folder(folder: Path, key: str, signature: Signature, path: Path, opset: int) -> None:
    """Convert a SavedModel's signature `key` as `tf2onnx.convert --saved-model` does. Raises StageError."""
    names = from_saved_model(folder, key).names(signature)
    with converting() as tf2onnx:
        import tensorflow as tf

        options = {"return_initialized_tables": True, "return_tensors_to_rename": True}
        graph, inputs, outputs, tables, titles = tf2onnx.tf_loader.from_saved_model(
            str(folder), None, None, tag=["serve"], signatures=[key], **options
        )
        input_names, own = [names[titles[tensor]] for tensor in inputs], [titles[tensor] for tensor in inputs]
        titles |= {tensor: f"{titles[tensor]}_out" for tensor in outputs if titles[tensor] in own}
        with tf.Graph().as_default() as tf_graph:
            tf.import_graph_def(graph, name="")
            converted = tf2onnx.tfonnx.process_tf_graph(
                tf_graph,
                continue_on_error=True,  # `require_converted` and the structure gate report what is left
                opset=opset,
                input_names=inputs,
                output_names=outputs,
                inputs_as_nchw=nchw_images(signature),
                tensors_to_rename=titles | dict(zip(inputs, input_names, strict=True)),
                initialized_tables=tables,
            )
        proto = tf2onnx.optimizer.optimize_graph(converted).make_model("tensorflow")
    onnx.save(apply_signature(proto, input_names, signature), path)


def nchw_images(signature: Signature) -> list[str]:
    """Return the inputs that the graph transposes from NCHW."""
    return [spec.name for spec in signature.inputs if signature.layout == "NCHW" and len(spec.shape) == 4]


def apply_signature(proto: onnx.ModelProto, inputs: list[str], signature: Signature) -> onnx.ModelProto:
    """Give the graph's inputs and outputs the signature's names and shapes, in place, and return the model.

    `inputs` are the names of the graph's first inputs, in order. Outputs are matched by name, or else by order.
    """
    graph, expected = proto.graph, [spec.name for spec in signature.outputs]
    outputs = [value.name for value in graph.output]
    if len(outputs) != len(expected):
        raise StageError(f"tf2onnx gives the outputs {outputs}, not {expected}")
    names = dict(zip([value.name for value in graph.input], inputs, strict=False))
    if set(outputs) != set(expected):
        names |= dict(zip(outputs, expected, strict=True))
    rename_tensors(graph, names)
    require_converted(proto)
    pad_as_tensorflow(proto)
    set_shapes(graph, (*signature.inputs, *signature.outputs))
    for value in graph.value_info:
        for index, axis in enumerate(value.type.tensor_type.shape.dim):
            if axis.dim_param.startswith(UNNAMED):
                axis.Clear()
                if index == 0:
                    axis.dim_param = "batch"
    return proto


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
