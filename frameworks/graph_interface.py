"""Give a converted graph the names and shapes of the signature, and the configured operator set."""

from collections.abc import Iterable

import onnx
from onnx.version_converter import convert_version

from gauntlet.core.signature import TensorSpec
from gauntlet.onnx_model.graph import import_standard_once, opset_versions
from gauntlet.onnx_model.model_file import bodies


def rename_tensors(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Rename tensors, old -> new, wherever they are used; other tensors with a new name are renamed too."""
    names = {old: new for old, new in names.items() if old != new}
    names = {name: f"{name}__inner" for name in set(names.values()) - set(names)} | names
    parts = [graph]
    for part in parts:
        for node in part.node:
            parts += bodies(node)
            for tensors in (node.input, node.output):
                tensors[:] = [names.get(name, name) for name in tensors]
        for value in (*part.input, *part.output, *part.value_info, *part.initializer):
            value.name = names.get(value.name, value.name)


def set_shapes(graph: onnx.GraphProto, specs: Iterable[TensorSpec]) -> None:
    """Give the graph's inputs and outputs the shapes of the signature's tensors of the same names."""
    shapes = {spec.name: spec.shape for spec in specs}
    for value in (*graph.input, *graph.output):
        if value.name in shapes:
            kind = value.type.tensor_type.elem_type
            value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, shapes[value.name]))


def at_opset(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Return the model at the configured operator set.

    skl2onnx and onnxmltools declare the oldest sufficient operator set, sometimes twice, and none for a forest alone;
    quantizers and optimizers reject such models.
    """
    import_standard_once(proto, opset)
    if opset_versions(proto)["ai.onnx"] == opset:
        return proto
    try:
        return convert_version(proto, opset)
    except RuntimeError:  # the converter does not support every operator; the model runs at the older set too
        return proto
