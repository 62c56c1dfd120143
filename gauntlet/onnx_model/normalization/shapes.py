"""Stored shapes, inferred anew: what an exporter or an earlier tool stored may be wrong or missing."""

import numpy as np
import onnx
from onnx import numpy_helper

from gauntlet.onnx_model.graph import Shape, all_graphs, constants, format_shape, tensor_shape, without_weights


def conflicting_shapes(proto: onnx.ModelProto) -> dict[str, tuple[Shape, Shape]]:
    """Return the stored shapes, also of outputs, that differ from what ONNX infers: name -> stored, inferred."""
    fresh = {value.name: tensor_shape(value) for value in _inferred(proto).values()}
    stored = {value.name: tensor_shape(value) for value in (*proto.graph.value_info, *proto.graph.output)}
    pairs = {name: (shape, fresh.get(name)) for name, shape in stored.items() if shape is not None}
    return {name: (old, new) for name, (old, new) in pairs.items() if new is not None and _conflict(old, new)}


def infer_shapes_anew(proto: onnx.ModelProto, *, always: bool = False) -> str:
    """Clear the stored shapes and infer them again where they conflict, or `always`.

    What ONNX cannot infer, as behind operators of other domains, stays as it was stored. Outputs keep their declared
    shape unless it is wrong.
    """
    conflicts = conflicting_shapes(proto)
    if not conflicts and not always:
        return ""
    fresh, graph = _inferred(proto), proto.graph
    stored = {tensor.name for tensor in graph.initializer}  # tools that reshape weights forget to update these
    kept = [value for value in graph.value_info if value.name not in fresh and value.name not in stored]
    for output in graph.output:
        if output.name in conflicts:
            output.type.tensor_type.shape.CopyFrom(fresh[output.name].type.tensor_type.shape)
    known = stored | {value.name for value in (*graph.output, *graph.input)}
    values = [*kept, *(value for name, value in fresh.items() if name not in known)]
    for inner in all_graphs(graph):
        del inner.value_info[:]
    graph.value_info.extend(values)
    if not conflicts:
        return f"inferred {len(values)} shapes"
    name, (old, new) = next(iter(conflicts.items()))
    example = f"'{name}' was stored as {format_shape(old)} and is {format_shape(new)}"
    return f"inferred {len(values)} shapes; {len(conflicts)} stored ones were wrong: {example}"


def _inferred(proto: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """Return the values of the graph whose shape ONNX infers from the inputs and weights alone."""
    bare = without_weights(proto)
    for graph in all_graphs(bare.graph):
        del graph.value_info[:]
    for output in bare.graph.output:  # a declared shape would hide the inferred one
        output.type.tensor_type.ClearField("shape")
    graph = onnx.shape_inference.infer_shapes(bare, data_prop=True).graph
    return {value.name: value for value in (*graph.value_info, *graph.output) if tensor_shape(value) is not None}


def _conflict(stored: Shape, inferred: Shape) -> bool:
    """Return whether two shapes cannot both be right: another rank, or another number on an axis."""
    if len(stored) != len(inferred):
        return True
    both = zip(stored, inferred, strict=True)
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in both)


NEARLY_ZERO = np.float32(2e-38)
NEVER_NEGATIVE = ("Relu", "Sigmoid", "HardSigmoid", "Softmax", "Softplus", "Abs", "Exp")
"""Operators whose outputs are at least 0; of those, both paddings have the same maximum."""


def keep_zero_padding(proto: onnx.ModelProto) -> str:
    """Make the zeros that pad a `MaxPool` nearly zeros, unless what they pad is never negative.

    ONNX Runtime (seen with 1.31, its pass PadFusion came with 1.17) moves a constant padding with zeros into the
    pooling, which ignores what is padded: where all values of a window are negative, the maximum is one of them instead
    of zero. The ZeroPadding2D of Keras' ResNet50V2 is such a padding.
    """
    changed = list[str]()
    for graph in all_graphs(proto.graph):
        known, made_by = constants(graph), {name: node for node in graph.node for name in node.output}
        pooled = {node.input[0] for node in graph.node if node.op_type == "MaxPool"}
        for node in graph.node:
            if node.op_type != "Pad" or node.output[0] not in pooled or not _pads_zeros(node, known):
                continue
            source = made_by.get(node.input[0])
            if source is not None and source.op_type in NEVER_NEGATIVE:
                continue
            name = f"{node.output[0]}_padding"
            graph.initializer.append(numpy_helper.from_array(np.asarray(NEARLY_ZERO), name))
            node.input[:] = [*node.input[:2], name, *node.input[3:]]
            changed.append(node.output[0])
    if not changed:
        return ""
    return f"padded {len(changed)} maxima with {NEARLY_ZERO:.0e}, such as '{changed[0]}': the runtime ignores zeros"


def _pads_zeros(node: onnx.NodeProto, known: dict[str, onnx.TensorProto]) -> bool:
    """Return whether a `Pad` (opset 11 and newer) adds zeros of float32, as far as the file tells."""
    if any(attribute.name == "mode" and attribute.s != b"constant" for attribute in node.attribute):
        return False
    if len(node.input) < 3 or not node.input[2]:
        return len(node.input) > 1  # older ones have the padding as an attribute
    value = known.get(node.input[2])
    return value is not None and value.data_type == onnx.TensorProto.FLOAT and not numpy_helper.to_array(value).any()
