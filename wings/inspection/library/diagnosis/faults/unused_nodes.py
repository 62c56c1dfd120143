"""Nodes that no output depends on."""

from gauntlet.onnx_model.graph import node_label
from gauntlet.onnx_model.normalization.tidy import unused_nodes
from wings.inspection.library.diagnosis.context import ModelContext
from wings.inspection.library.diagnosis.findings import Finding


def find(context: ModelContext) -> Finding | None:
    """Check the main graph for nodes that no output depends on."""
    unused = unused_nodes(context.graph)
    if not unused:
        return None
    cause = f"no output depends on {node_label(unused[0])}"
    cause += f" and {len(unused) - 1} more nodes" if len(unused) > 1 else ""
    fix = "remove what is not used with --fix"
    return Finding(fault="unused_nodes", cause=cause, fix=fix, fixable=True, severity="warning")
