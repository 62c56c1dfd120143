"""Values of a model's intermediate tensors, and parts of a model as models of their own."""

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import onnx

from gauntlet.core.arrays import NamedArrays
from gauntlet.onnx_model.graph import all_nodes
from gauntlet.runtime.session import open_session


def intermediate_values(proto: onnx.ModelProto, names: Iterable[str], feed: NamedArrays) -> NamedArrays:
    """Return the named tensors of one call without graph optimization; values other than arrays are left out."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    del model.graph.output[:]
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    session = open_session(model.SerializeToString(), level="off")
    outputs = [output.name for output in session.get_outputs()]
    values = session.run(outputs, {i.name: feed[i.name] for i in session.get_inputs()})
    return {name: value for name, value in zip(outputs, values, strict=True) if isinstance(value, np.ndarray)}


def producers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """Return the node that computes each tensor, in the order of computation."""
    return {name: node for node in graph.node for name in node.output if name}


def needed_for(graph: onnx.GraphProto, names: Iterable[str], known: Collection[str] = ()) -> set[str]:
    """Return some tensors and all that they are computed of, back to those that are `known`."""
    made_by, needed = producers(graph), {*names}
    queue = [*needed]
    while queue:
        name = queue.pop()
        node = None if name in known else made_by.get(name)
        inputs = inputs_of([node]) - needed if node is not None else set()
        needed |= inputs
        queue += inputs
    return needed


def inputs_of(nodes: Sequence[onnx.NodeProto]) -> set[str]:
    """Return the tensors that nodes read, those that their bodies read included."""
    return {name for node in all_nodes(onnx.GraphProto(node=nodes)) for name in node.input if name}
