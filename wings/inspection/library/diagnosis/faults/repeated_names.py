"""Nodes of the same name, which ONNX Runtime refuses."""

from gauntlet.onnx_model.normalization.tidy import unclear_node_names
from wings.inspection.library.diagnosis.context import ModelContext
from wings.inspection.library.diagnosis.findings import Finding


def find(context: ModelContext) -> Finding | None:
    """Check for nodes of one graph that have the same name."""
    _, repeated = unclear_node_names(context.proto)
    if not repeated:
        return None
    cause = f"{repeated} nodes have the name of another one: ONNX Runtime does not load such a model"
    return Finding(fault="repeated_names", cause=cause, fix="give them names of their own with --fix", fixable=True)
