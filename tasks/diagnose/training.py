"""Exported in training mode: batch normalisation uses the batch's own statistics, dropout drops."""

import onnx
from onnx import helper

from tasks.diagnose.clues import Clues
from tasks.diagnose.finding import Finding
from tasks.errors import StageError
from tasks.runtime.graph import label, nodes
from tasks.runtime.operators import training_nodes


def find(clues: Clues) -> Finding | None:
    """Look for nodes that behave as in training."""
    training = training_nodes(clues.proto)
    if not training:
        return None
    more = f" and {len(training) - 1} more" if len(training) > 1 else ""
    return Finding(
        fault="training_mode",
        cause=f"{label(training[0])}{more} still train{'' if more else 's'}: the answer depends on chance, "
        "or on the rest of the batch",
        fix="export in evaluation mode (PyTorch: model.eval()), or let --fix switch the nodes to inference",
        fixable=True,
    )


def fix(proto: onnx.ModelProto) -> str:
    """Switch every such node to inference, in place; return what was done."""
    training = training_nodes(proto)
    for node in training:
        if node.op_type == "Dropout":
            del node.input[2:]
            continue
        for attribute in [a for a in node.attribute if a.name == "training_mode"]:
            node.attribute.remove(attribute)
    _keep_statistics(proto.graph, training)
    return f"switched {len(training)} node{'s' if len(training) > 1 else ''} to inference"


def _keep_statistics(graph: onnx.GraphProto, training: list[onnx.NodeProto]) -> None:
    """Drop the outputs that only training has; where somebody reads one, it becomes the unchanged statistic."""
    read = {name for node in nodes(graph) for name in node.input} | {o.name for o in graph.output}
    places = {name: place for place, node in enumerate(graph.node) for name in node.output}
    unchanged: list[tuple[int, onnx.NodeProto]] = []
    for node in training:
        if node.op_type != "BatchNormalization":
            continue
        for statistic, output in zip(node.input[3:5], node.output[1:3], strict=False):
            if output in read:
                if output not in places:
                    raise StageError(f"{label(node)} is in a branch, and its statistics are read")
                node_of = helper.make_node("Identity", [statistic], [output], f"{output}_unchanged")
                unchanged.append((places[output], node_of))
        del node.output[1:]
    for place, node in sorted(unchanged, key=lambda pair: -pair[0]):
        graph.node.insert(place, node)
