"""Nodes that no output depends on."""

import onnx

from gauntlet.onnx_model.graph import all_nodes, node_label
from gauntlet.onnx_model.model_file import bodies
from wings.inspection.library.diagnosis.context import ModelContext
from wings.inspection.library.diagnosis.findings import Finding


def find(context: ModelContext) -> Finding | None:
    """Check the main graph for nodes that no output depends on."""
    unused = _unused_nodes(context.graph)
    if not unused:
        return None
    cause = f"no output depends on {node_label(unused[0])}"
    cause += f" and {len(unused) - 1} more nodes" if len(unused) > 1 else ""
    fix = "remove what is not used with --fix"
    return Finding(fault="unused_nodes", cause=cause, fix=fix, fixable=True, severity="warning")


def _unused_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the nodes of the main graph that no output depends on; the nodes may be in any order."""
    producers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    used, pending = set[int](), [output.name for output in graph.output]
    while pending:
        index = producers.get(pending.pop())
        if index is not None and index not in used:
            used.add(index)
            pending += _read_names(graph.node[index])
    return [node for index, node in enumerate(graph.node) if index not in used]


def _read_names(node: onnx.NodeProto) -> list[str]:
    """Return the names that a node and its inner graphs read."""
    inner = list(bodies(node))
    read = [name for body in inner for part in all_nodes(body) for name in part.input]
    return [*node.input, *read, *(output.name for body in inner for output in body.output)]
