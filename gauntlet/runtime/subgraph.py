"""What a model computes on its way: the values of its inner tensors, and parts of it as models of their own."""

from collections.abc import Collection, Iterable

import numpy as np
import onnx

from gauntlet.core.arrays import NamedArrays
from gauntlet.onnx_model.graph import all_nodes
from gauntlet.runtime.session import open_session


def intermediate_values(proto: onnx.ModelProto, names: Iterable[str], feed: NamedArrays) -> NamedArrays:
    """Return the tensors of these names in one unoptimised call; what is no array is left out.

    Raises:
        StageError: when the runtime refuses the model. What it raises in the call has no public base.
    """
    asked = onnx.ModelProto()
    asked.CopyFrom(proto)
    del asked.graph.output[:]
    asked.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    session = open_session(asked.SerializeToString(), level="off")
    wanted = [output.name for output in session.get_outputs()]
    values = session.run(wanted, {i.name: feed[i.name] for i in session.get_inputs()})
    return {name: value for name, value in zip(wanted, values, strict=True) if isinstance(value, np.ndarray)}


def producers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """Return the node that makes each tensor, in the order of computation."""
    return {name: node for node in graph.node for name in node.output if name}


def extract_subgraph(
    proto: onnx.ModelProto, kept: Collection[int], values: NamedArrays
) -> tuple[onnx.ModelProto, NamedArrays]:
    """Return a model of some nodes, by their places, and its inputs: what other nodes made is given from outside.

    Args:
        proto: the whole model, in the order of computation, with the shapes that inference finds.
        kept: the places of the nodes.
        values: the value of every tensor in one call of the whole model.
    """
    graph = proto.graph
    chosen = [node for place, node in enumerate(graph.node) if place in kept]
    used = {name for node in chosen for inner in _with_bodies(node) for name in inner.input if name}
    made = {name for node in chosen for name in node.output if name}
    stored = [tensor for tensor in graph.initializer if tensor.name in used]
    given = [name for name in values if name in used - made - {tensor.name for tensor in stored}]
    others = [node for place, node in enumerate(graph.node) if place not in kept]
    needed = {name for node in others for inner in _with_bodies(node) for name in inner.input}
    needed |= {output.name for output in graph.output}
    left = [name for node in chosen for name in node.output if name in needed] or list(chosen[-1].output)
    known: dict[str, onnx.ValueInfoProto] = {v.name: v for v in (*graph.input, *graph.value_info, *graph.output)}

    def described(name: str) -> onnx.ValueInfoProto:
        if name in known and known[name].type.tensor_type.HasField("shape"):
            return known[name]
        kind = onnx.helper.np_dtype_to_tensor_dtype(values[name].dtype)
        return onnx.helper.make_tensor_value_info(name, kind, values[name].shape)

    part = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    part.graph.name = "part"
    part.graph.node.extend(chosen)
    part.graph.initializer.extend(stored)
    part.graph.input.extend(described(name) for name in given)
    part.graph.output.extend(described(name) for name in left if name in values)
    return part, {name: values[name] for name in given}


def _with_bodies(node: onnx.NodeProto) -> Iterable[onnx.NodeProto]:
    holder = onnx.GraphProto(node=[node])
    return list(all_nodes(holder))
