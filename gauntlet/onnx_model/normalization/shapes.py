"""Stored shapes, inferred anew: what an exporter or an earlier tool stored may be wrong or missing."""

import onnx

from gauntlet.onnx_model.graph import Shape, all_graphs, format_shape, tensor_shape, without_weights


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
