"""What both exporters of TensorFlow share: its converter, the SavedModel's graph, and the signature's names in it."""

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.errors import StageError
from tasks.signature import Signature, TensorSpec
from tasks.sources.keras import files
from tasks.sources.keras.answers import of_saved_model
from tasks.sources.keras.start import start

if TYPE_CHECKING:
    import onnx

NEWEST_OPSET = 18
UNNAMED = "unk__"
"""With which tf2onnx begins the name of an axis of any length."""


@contextlib.contextmanager
def converting() -> Iterator[Any]:
    """Give the package `tf2onnx`, silent; operators that it leaves unconverted are the structure gate's to name.

    Raises:
        StageError: when the conversion inside fails.
    """
    start()
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


def from_saved_model(packed: Path, signature: Signature, path: Path, opset: int) -> None:
    """Convert a SavedModel that `tasks.sources.keras.files.pack` put into one file.

    Raises:
        StageError: when tf2onnx cannot.
    """
    with tempfile.TemporaryDirectory() as folder:
        meant = files.unpack(packed, Path(folder))
        convert_folder(Path(folder), meant, signature, path, opset)


def convert_folder(folder: Path, meant: str, signature: Signature, path: Path, opset: int) -> None:
    """Convert one signature of a SavedModel, as `tf2onnx.convert --saved-model` does.

    Raises:
        StageError: when tf2onnx cannot.
    """
    import onnx

    names = of_saved_model(folder, meant).names(signature)
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
    onnx.save(signed(proto, given, signature), path)


def pictures(signature: Signature) -> list[str]:
    """Return the inputs whose transposition from NCHW belongs into the graph."""
    return [spec.name for spec in signature.inputs if signature.layout == "NCHW" and len(spec.shape) == 4]


def signed(proto: "onnx.ModelProto", inputs: list[str], signature: Signature) -> "onnx.ModelProto":
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
    for part in _graphs(graph):
        for node in part.node:
            for places in (node.input, node.output):
                places[:] = [names.get(name, name) for name in places]
        for value in (*part.input, *part.output, *part.value_info, *part.initializer):
            value.name = names.get(value.name, value.name)


def _graphs(graph: "onnx.GraphProto") -> Iterator["onnx.GraphProto"]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                if body.node:
                    yield from _graphs(body)


def _set_shape(value: "onnx.ValueInfoProto", spec: TensorSpec) -> None:
    import onnx.helper

    kind = value.type.tensor_type.elem_type
    value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, spec.shape))
