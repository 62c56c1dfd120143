"""Find nodes that cannot be used for inference: unknown operators, and nodes in training mode."""

from functools import cache

import onnx
import onnx.defs
from onnx import numpy_helper
from onnxruntime.capi._pybind_state import get_all_operator_schema

from gauntlet.onnx_model.graph import all_nodes, attributes_of, constants, opset_versions


def unsupported_nodes(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes whose operator is not defined by the model, the ONNX standard or the installed runtime."""
    own = {(f.domain, f.name) for f in proto.functions}
    versions = opset_versions(proto)
    return [n for n in all_nodes(proto.graph) if (n.domain, n.op_type) not in own and not _is_known(n, versions)]


def training_mode_nodes(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the BatchNormalization and Dropout nodes that are, or may be, in training mode."""
    off = {name for name, tensor in constants(proto.graph).items() if _is_false(tensor)}
    opset = opset_versions(proto).get("ai.onnx", 1)
    return [node for node in all_nodes(proto.graph) if _trains(node, off, opset)]


def _is_known(node: onnx.NodeProto, versions: dict[str, int]) -> bool:
    domain = "" if node.domain == "ai.onnx" else node.domain
    version = versions.get(domain or "ai.onnx", 1)
    return (domain, node.op_type) in _runtime_operators() or onnx.defs.has(node.op_type, version, domain)


@cache
def _runtime_operators() -> frozenset[tuple[str, str]]:
    return frozenset((s.domain, s.name) for s in get_all_operator_schema() if s.domain)


def _trains(node: onnx.NodeProto, off: set[str], opset: int) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "Dropout":
        return len(node.input) > 2 and bool(node.input[2]) and node.input[2] not in off
    if node.op_type != "BatchNormalization":
        return False
    if opset < 14:  # more than one output means training
        return len([name for name in node.output if name]) > 1
    return bool(attributes_of(node).get("training_mode"))


def _is_false(tensor: onnx.TensorProto) -> bool:
    stored = tensor.data_location != onnx.TensorProto.EXTERNAL
    return stored and tensor.data_type == onnx.TensorProto.BOOL and not numpy_helper.to_array(tensor).any()
