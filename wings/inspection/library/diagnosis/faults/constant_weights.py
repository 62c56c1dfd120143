"""Weights in Constant nodes, where quantizers do not find them."""

from gauntlet.onnx_model.graph import all_nodes, node_label
from wings.inspection.library.diagnosis.context import ModelContext
from wings.inspection.library.diagnosis.findings import Finding

WEIGHTED = {"Conv", "ConvTranspose", "Gemm", "MatMul"}


def find(context: ModelContext) -> Finding | None:
    """Check for convolutions and matrix products whose weights are Constant nodes."""
    nodes = list(all_nodes(context.graph))
    stored = {name for node in nodes if node.op_type == "Constant" for name in node.output}
    readers = [n for n in nodes if n.op_type in WEIGHTED and len(n.input) > 1 and n.input[1] in stored]
    if not readers:
        return None
    cause = f"the weights of {node_label(readers[0])} are a Constant node, as of {len(readers)} in all: "
    cause += "dynamic quantization expects an initializer"
    fix = "turn Constant nodes into initializers with --fix"
    return Finding(fault="constant_weights", cause=cause, fix=fix, fixable=True, severity="warning")
