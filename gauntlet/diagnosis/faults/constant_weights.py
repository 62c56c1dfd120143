"""Weights in Constant nodes, where quantizers do not find them."""

from gauntlet.diagnosis.context import ModelContext
from gauntlet.diagnosis.findings import Finding
from gauntlet.onnx_model.graph import all_nodes, node_label

WEIGHTED = {"Conv", "ConvTranspose", "Gemm", "MatMul"}


def find(context: ModelContext) -> Finding | None:
    """Check for convolutions and matrix products whose weights are Constant nodes."""
    nodes = list(all_nodes(context.graph))
    stored = {name for node in nodes if node.op_type == "Constant" for name in node.output}
    found = [n for n in nodes if n.op_type in WEIGHTED and len(n.input) > 1 and n.input[1] in stored]
    if not found:
        return None
    cause = f"the weights of {node_label(found[0])} are a Constant node, as of {len(found)} in all: "
    cause += "dynamic quantization expects an initializer"
    fix = "turn Constant nodes into initializers with --fix"
    return Finding(fault="constant_weights", cause=cause, fix=fix, fixable=True, severity="warning")
