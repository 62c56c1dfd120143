"""Topological order of the nodes, in the graph and in the graphs inside it."""

from typing import Any

import onnx

from gauntlet.core.errors import StageError, one_line
from gauntlet.onnx_model.graph import all_graphs, node_label
from gauntlet.onnx_model.model_file import bodies


def run_passes(proto: onnx.ModelProto, *passes: Any, always: bool = False) -> bool:
    """Run onnx_ir's passes in this order, and return whether one changed the model, which is then changed in place.

    With `always`, the model is taken over whatever they say: some do not notice changes of inner graphs.

    Raises:
        StageError: when the model has parts that onnx_ir does not read, and would lose.
    """
    if proto.training_info or any(graph.sparse_initializer for graph in all_graphs(proto.graph)):
        raise StageError("the model has sparse weights or training information, which onnx_ir does not keep")
    import onnx_ir as ir  # it imports sympy, which takes a second

    try:
        model = ir.from_proto(proto)
    except Exception as error:  # it wraps whatever it meets
        raise StageError(f"onnx_ir cannot read the model: {one_line(error.__cause__ or error)}") from error
    modified = always
    for each in passes:
        result = each(model)
        model, modified = result.model, modified or result.modified
    if modified:
        proto.CopyFrom(ir.to_proto(model))
    return modified


def first_unsorted(graph: onnx.GraphProto, outer: frozenset[str] = frozenset()) -> onnx.NodeProto | None:
    """Return the first node that reads, also inside its bodies, what a later node computes; None in a sorted graph."""
    computed = {name for node in graph.node for name in node.output if name}
    available = set(outer) | {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    node: onnx.NodeProto
    for node in graph.node:
        if any(name in computed and name not in available for name in node.input if name):
            return node
        for body in bodies(node):
            late = computed - available
            if first_unsorted(body, frozenset(available)) is not None or late & _free_names(body):
                return node
        available.update(node.output)
    return None


def _free_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names that a body reads and does not define itself."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    read = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    return (read.union(*(_free_names(body) for node in graph.node for body in bodies(node)))) - own


def sort_nodes(proto: onnx.ModelProto) -> str:
    """Sort the nodes so that each comes after those whose outputs it reads."""
    node = first_unsorted(proto.graph)
    if node is None:
        return ""
    from onnx_ir.passes.common import TopologicalSortPass

    run_passes(proto, TopologicalSortPass(), always=True)
    return f"sorted the nodes: {node_label(node)} came before a node that it reads from"
