"""Values of a model's intermediate tensors, and parts of a model as models of their own."""

from collections.abc import Collection, Iterable

import numpy as np
import onnx

from gauntlet.core.arrays import NamedArrays
from gauntlet.onnx_model.graph import all_nodes
from gauntlet.runtime.session import open_session


def intermediate_values(proto: onnx.ModelProto, names: Iterable[str], feed: NamedArrays) -> NamedArrays:
    """Return the named tensors of one call without graph optimization; values other than arrays are left out."""
    asked = onnx.ModelProto()
    asked.CopyFrom(proto)
    del asked.graph.output[:]
    asked.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    session = open_session(asked.SerializeToString(), level="off")
    wanted = [output.name for output in session.get_outputs()]
    values = session.run(wanted, {i.name: feed[i.name] for i in session.get_inputs()})
    return {name: value for name, value in zip(wanted, values, strict=True) if isinstance(value, np.ndarray)}


def producers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """Return the node that computes each tensor, in the order of computation."""
    return {name: node for node in graph.node for name in node.output if name}


def needed_for(graph: onnx.GraphProto, names: Iterable[str], given: Collection[str] = ()) -> set[str]:
    """Return some tensors and all that they are computed of, back to those that are `given`."""
    made_by, needed = producers(graph), {*names}
    queue = [*needed]
    while queue:
        name = queue.pop()
        node = None if name in given else made_by.get(name)
        found = inputs_of([node]) - needed if node is not None else set()
        needed |= found
        queue += found
    return needed


def part_before(proto: onnx.ModelProto, name: str, output: str) -> onnx.ModelProto:
    """Return the part of a model that computes a tensor of floats, as its only output, which is named `output`."""
    needed = needed_for(proto.graph, [name])
    part = onnx.ModelProto()
    part.CopyFrom(proto)
    for field in ("node", "initializer", "output", "value_info"):
        part.graph.ClearField(field)
    part.graph.node.extend(node for node in proto.graph.node if needed & {*node.output})
    part.graph.initializer.extend(tensor for tensor in proto.graph.initializer if tensor.name in needed)
    while output in needed:
        output += "_"
    part.graph.node.append(onnx.helper.make_node("Identity", [name], [output]))
    part.graph.output.append(onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, ["n", None]))
    return part


def extract_subgraph(
    proto: onnx.ModelProto, kept: Collection[int], values: NamedArrays
) -> tuple[onnx.ModelProto, NamedArrays]:
    """Return the nodes at the indices `kept` as a model, and its inputs, taken from `values`.

    `proto` needs inferred shapes; `values` has every tensor of one call of the whole model.
    """
    graph = proto.graph
    chosen = [node for index, node in enumerate(graph.node) if index in kept]
    others = [node for index, node in enumerate(graph.node) if index not in kept]
    used, computed = inputs_of(chosen), {name for node in chosen for name in node.output if name}
    stored = [tensor for tensor in graph.initializer if tensor.name in used]
    given = [name for name in values if name in used - computed - {tensor.name for tensor in stored}]
    needed = inputs_of(others) | {output.name for output in graph.output}
    outputs = [name for node in chosen for name in node.output if name in needed] or list(chosen[-1].output)
    known: dict[str, onnx.ValueInfoProto] = {v.name: v for v in (*graph.input, *graph.value_info, *graph.output)}

    def value_info(name: str) -> onnx.ValueInfoProto:
        if name in known and known[name].type.tensor_type.HasField("shape"):
            return known[name]
        kind = onnx.helper.np_dtype_to_tensor_dtype(values[name].dtype)
        return onnx.helper.make_tensor_value_info(name, kind, values[name].shape)

    part = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    part.graph.name = "part"
    part.graph.node.extend(chosen)
    part.graph.initializer.extend(stored)
    part.graph.input.extend(value_info(name) for name in given)
    part.graph.output.extend(value_info(name) for name in outputs if name in values)
    return part, {name: values[name] for name in given}


def inputs_of(nodes: list[onnx.NodeProto]) -> set[str]:
    """Return the tensors that nodes read, those that their bodies read included."""
    return {name for node in all_nodes(onnx.GraphProto(node=nodes)) for name in node.input if name}
