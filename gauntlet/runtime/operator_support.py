"""Which nodes of a graph will not do here: operators that nobody knows, and nodes that still behave as in training."""

from functools import cache

import onnx
import onnx.defs
from onnx import numpy_helper
from onnxruntime.capi._pybind_state import get_all_operator_schema

from gauntlet.onnx_model.graph import all_nodes, opset_versions


def unsupported_nodes(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes whose operator neither the model, nor the standard, nor the installed runtime defines."""
    own = {(f.domain, f.name) for f in proto.functions}
    versions = opset_versions(proto)
    return [n for n in all_nodes(proto.graph) if (n.domain, n.op_type) not in own and not _is_known(n, versions)]


def training_mode_nodes(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes that use the batch's own statistics, or drop values; a switch that is computed might be on."""
    off = _false_constants(proto.graph)
    opset = opset_versions(proto).get("ai.onnx", 1)
    return [node for node in all_nodes(proto.graph) if _trains(node, off, opset)]


def _is_known(node: onnx.NodeProto, versions: dict[str, int]) -> bool:
    domain = "" if node.domain == "ai.onnx" else node.domain
    if (domain, node.op_type) in _brought_by_the_runtime():
        return True
    try:
        onnx.defs.get_schema(node.op_type, versions.get(domain or "ai.onnx", 1), domain)
    except onnx.defs.SchemaError:
        return False
    return True


@cache
def _brought_by_the_runtime() -> frozenset[tuple[str, str]]:
    """Return the operators outside the standard that the runtime has."""
    return frozenset((s.domain, s.name) for s in get_all_operator_schema() if s.domain)


def _trains(node: onnx.NodeProto, off: set[str], opset: int) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "Dropout":
        return len(node.input) > 2 and bool(node.input[2]) and node.input[2] not in off
    if node.op_type != "BatchNormalization":
        return False
    if opset < 14:  # where more outputs than one mean training
        return len([name for name in node.output if name]) > 1
    return any(a.name == "training_mode" and a.i for a in node.attribute)


def _false_constants(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the constant tensors that hold nothing but False."""
    constants = [(t.name, t) for t in graph.initializer]
    for node in all_nodes(graph):
        if node.op_type == "Constant":
            constants += [(node.output[0], a.t) for a in node.attribute if a.name == "value" and node.output]
    return {name for name, tensor in constants if _is_false(tensor)}


def _is_false(tensor: onnx.TensorProto) -> bool:
    here = tensor.data_location != onnx.TensorProto.EXTERNAL
    return here and tensor.data_type == onnx.TensorProto.BOOL and not numpy_helper.to_array(tensor).any()
