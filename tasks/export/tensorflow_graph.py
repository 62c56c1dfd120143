"""What both exporters of TensorFlow share: its converter, the SavedModel's graph, and the signature's names in it."""

import contextlib
import logging
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.frameworks.keras import files
from gauntlet.frameworks.keras.model import from_saved_model
from gauntlet.frameworks.keras.tensorflow_setup import start_tensorflow
from gauntlet.onnx_model.model_file import bodies

if TYPE_CHECKING:
    import onnx

NEWEST_OPSET = 18
UNNAMED = "unk__"
"""With which tf2onnx begins the name of an axis of any length."""


class TensorFlowExport(Frozen, ABC):
    """What both exporters of TensorFlow models are: a SavedModel goes the same way in both."""

    opset: int = Field(18, ge=13, le=NEWEST_OPSET, description="ONNX operator set; 18 is the newest of this exporter")

    framework: ClassVar[str] = "keras"
    packages: ClassVar[dict[str, str]] = {"keras": "tensorflow", "tensorflow": "tensorflow", "tf2onnx": "tensorflow"}

    def write(self, model: Path, signature: Signature, path: Path) -> None:
        """Convert the model saved in `model` to `path`.

        Raises:
            StageError: when tf2onnx cannot.
        """
        if model.suffix != files.SAVED_MODEL:
            self.from_network(files.load(model), signature, path)
            return
        with tempfile.TemporaryDirectory() as folder:
            meant = files.unpack_saved_model(model, Path(folder))
            convert_folder(Path(folder), meant, signature, path, self.opset)

    @abstractmethod
    def from_network(self, network: Any, signature: Signature, path: Path) -> None:
        """Convert a Keras network to `path`."""


@contextlib.contextmanager
def converting() -> Iterator[Any]:
    """Give the package `tf2onnx`, silent; operators that it leaves unconverted are the structure gate's to name.

    Raises:
        StageError: when the conversion inside fails.
    """
    start_tensorflow()
    import tf2onnx
    import tf2onnx.tfonnx

    logger = logging.getLogger("tf2onnx")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    tf2onnx.utils.INTERNAL_NAME = 1  # it numbers tensors through all conversions; equal models become equal files
    try:
        yield tf2onnx
    except Exception as error:  # TensorFlow's, the protocol buffers' and its own
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise StageError(f"tf2onnx {tf2onnx.__version__} cannot convert the model: {reason}") from error
    finally:
        logger.setLevel(level)


def convert_folder(folder: Path, meant: str, signature: Signature, path: Path, opset: int) -> None:
    """Convert one signature of a SavedModel, as `tf2onnx.convert --saved-model` does.

    Raises:
        StageError: when tf2onnx cannot.
    """
    import onnx

    names = from_saved_model(folder, meant).names(signature)
    with converting() as tf2onnx:
        import tensorflow as tf

        graph, inputs, outputs, tables, titles = tf2onnx.tf_loader.from_saved_model(
            str(folder),
            None,
            None,
            tag=["serve"],
            signatures=[meant],
            return_initialized_tables=True,
            return_tensors_to_rename=True,
        )
        given = [names[titles[tensor]] for tensor in inputs]
        with tf.Graph().as_default() as tf_graph:
            tf.import_graph_def(graph, name="")
            converted = tf2onnx.tfonnx.process_tf_graph(
                tf_graph,
                continue_on_error=True,
                opset=opset,
                input_names=inputs,
                output_names=outputs,
                inputs_as_nchw=pictures(signature),
                tensors_to_rename=titles | dict(zip(inputs, given, strict=True)),
                initialized_tables=tables,
            )
        proto = tf2onnx.optimizer.optimize_graph(converted).make_model("tensorflow")
    onnx.save(apply_signature(proto, given, signature), path)


def pictures(signature: Signature) -> list[str]:
    """Return the inputs whose transposition from NCHW belongs into the graph."""
    return [spec.name for spec in signature.inputs if signature.layout == "NCHW" and len(spec.shape) == 4]


def apply_signature(proto: "onnx.ModelProto", inputs: list[str], signature: Signature) -> "onnx.ModelProto":
    """Give the graph's inputs and outputs the names and shapes of the signature, in place, and return the model.

    Args:
        proto: what tf2onnx made.
        inputs: the signature's names of the graph's first inputs, in their order; more inputs are left as they are.
        signature: the contract. Its outputs are found by their names, or else by their order.
    """
    graph = proto.graph
    outputs = [spec.name for spec in signature.outputs]
    found = [value.name for value in graph.output]
    if len(found) != len(outputs):
        raise StageError(f"tf2onnx gives the outputs {found}, the model has {outputs}")
    renamed = dict(zip([value.name for value in graph.input], inputs, strict=False))
    renamed |= {name: name if set(found) == set(outputs) else outputs[place] for place, name in enumerate(found)}
    _rename(graph, {old: new for old, new in renamed.items() if old != new})
    specs = {spec.name: spec for spec in (*signature.inputs, *signature.outputs)}
    for value in (*graph.input, *graph.output):
        if value.name in specs:
            _set_shape(value, specs[value.name])
    for value in graph.value_info:
        for place, axis in enumerate(value.type.tensor_type.shape.dim):
            if axis.dim_param.startswith(UNNAMED):
                axis.Clear()
                if place == 0:
                    axis.dim_param = "batch"
    return proto


def _rename(graph: "onnx.GraphProto", names: dict[str, str]) -> None:
    """Rename tensors wherever they are used; one that has a new name already gets another."""
    taken = set(names.values()) - set(names)
    names = {name: f"{name}__inner" for name in taken} | names
    parts = [graph]
    for part in parts:
        for node in part.node:
            parts += bodies(node)
            for places in (node.input, node.output):
                places[:] = [names.get(name, name) for name in places]
        for value in (*part.input, *part.output, *part.value_info, *part.initializer):
            value.name = names.get(value.name, value.name)


def _set_shape(value: "onnx.ValueInfoProto", spec: TensorSpec) -> None:
    import onnx.helper

    kind = value.type.tensor_type.elem_type
    value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, spec.shape))
