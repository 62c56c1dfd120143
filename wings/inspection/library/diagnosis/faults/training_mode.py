"""Exported in training mode: batch normalization uses batch statistics, and dropout is active."""

import onnx
from onnx import helper

from gauntlet.core.errors import StageError
from gauntlet.onnx_model.graph import all_nodes, node_label
from gauntlet.runtime.operator_support import training_mode_nodes
from wings.inspection.library.diagnosis.context import ModelContext
from wings.inspection.library.diagnosis.findings import Finding


def find(context: ModelContext) -> Finding | None:
    """Check for nodes in training mode."""
    training = training_mode_nodes(context.proto)
    if not training:
        return None
    are = f" and {len(training) - 1} more are" if len(training) > 1 else " is"
    cause = f"{node_label(training[0])}{are} in training mode: outputs are random, or depend on the rest of the batch"
    fix = "export in evaluation mode (PyTorch: model.eval()), or switch the nodes to inference with --fix"
    return Finding(fault="training_mode", cause=cause, fix=fix, fixable=True)


def fix(proto: onnx.ModelProto) -> str:
    """Switch every node in training mode to inference, in place; return what was done."""
    training = training_mode_nodes(proto)
    for node in training:
        if node.op_type == "Dropout":
            del node.input[2:]
            continue
        for attribute in [a for a in node.attribute if a.name == "training_mode"]:
            node.attribute.remove(attribute)
    _keep_statistics(proto.graph, training)
    return f"switched {len(training)} node{'s' if len(training) > 1 else ''} to inference"


def _keep_statistics(graph: onnx.GraphProto, training: list[onnx.NodeProto]) -> None:
    """Drop the outputs that exist only in training; one that is read becomes the unchanged statistic."""
    read = {name for node in all_nodes(graph) for name in node.input} | {o.name for o in graph.output}
    indices = {name: index for index, node in enumerate(graph.node) for name in node.output}
    unchanged: list[tuple[int, onnx.NodeProto]] = []
    for node in training:
        if node.op_type != "BatchNormalization":
            continue
        for statistic, output in zip(node.input[3:5], node.output[1:3], strict=False):
            if output in read:
                if output not in indices:
                    raise StageError(f"{node_label(node)} is in a branch, and its statistics are read")
                identity = helper.make_node("Identity", [statistic], [output], f"{output}_unchanged")
                unchanged.append((indices[output], identity))
        del node.output[1:]
    for index, node in sorted(unchanged, key=lambda pair: -pair[0]):
        graph.node.insert(index, node)
