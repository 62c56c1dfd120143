"""Nodes that come before one whose output they read."""

from gauntlet.onnx_model.graph import node_label
from gauntlet.onnx_model.normalization.order import first_unsorted
from wings.inspection.library.diagnosis.context import ModelContext
from wings.inspection.library.diagnosis.findings import Finding


def find(context: ModelContext) -> Finding | None:
    """Check the order of the nodes, in inner graphs as well."""
    node = first_unsorted(context.graph)
    if node is None:
        return None
    cause = f"{node_label(node)} comes before a node whose output it reads, which the ONNX standard forbids"
    return Finding(fault="unsorted_nodes", cause=cause, fix="sort the nodes with --fix", fixable=True)
