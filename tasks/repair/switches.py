"""A quantised model with a switch at every tensor: which nodes are quantised is decided at each call, not in the file.

In a QDQ graph, quantising is a pair of QuantizeLinear and DequantizeLinear on a tensor. Each pair gets a `Where` behind
it, between the rounded value and the one before. One session then tells what any choice of nodes would cost.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

from tasks.data.dataset import Arrays
from tasks.errors import StageError
from tasks.model_file import is_large, read_model
from tasks.runtime.calls import calls
from tasks.runtime.session import open_session

BATCH = 16
SWITCH = "switch/"
FLOAT = "/float"
QUANTIZABLE = QDQRegistry.keys() | QLinearOpsRegistry.keys()
KEEP_PAIRS = {"session.disable_quant_qdq": "1"}
"""Nothing may be fused that a switch must be able to take apart."""


class Switchable:
    """The model, and which of its nodes can be left in float."""

    def __init__(self, quantized: Path, prepared: Path) -> None:
        """Read the fully quantised model (QDQ), and the one with float weights that it was made from.

        Raises:
            StageError: when the model is too large for one message in memory.
        """
        proto, source = read_model(quantized), read_model(prepared).graph
        nodes, self._switches = _with_switches(proto.graph, source)
        self._tensors = _tensors(nodes, self._switches)
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
        used = {name for node in nodes for name in node.input}
        for tensor in source.initializer:
            if tensor.name + FLOAT in used:
                proto.graph.initializer.append(tensor)
                proto.graph.initializer[-1].name += FLOAT
        for switch in self._switches.values():
            proto.graph.input.append(helper.make_tensor_value_info(switch, TensorProto.BOOL, []))
        del proto.graph.value_info[:]
        if is_large(proto):
            raise StageError("the model is too large to be repaired: its weights do not fit one message of 2 GB")
        self._session = open_session(proto.SerializeToString(), level="basic", settings=KEEP_PAIRS)

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes that can be left in float."""
        return frozenset(self._tensors)

    def run(self, samples: Arrays, quantized: Collection[str]) -> Arrays:
        """Return the model's outputs when only these nodes are quantised.

        A tensor is rounded when a quantised node reads or writes it, for all its readers: so ONNX Runtime's quantiser
        does it.
        """
        on = {tensor for node in quantized for tensor in self._tensors[node]}
        chosen = {switch: np.array(tensor in on) for tensor, switch in self._switches.items()}
        return calls(_Switched(self._session, chosen), samples).run(BATCH)


class _Switched:
    """A session whose switches are set: it takes and gives what the model itself does."""

    def __init__(self, session: Any, chosen: Mapping[str, Any]) -> None:
        self._session, self._chosen = session, dict(chosen)

    def get_inputs(self) -> list[Any]:
        return [i for i in self._session.get_inputs() if not i.name.startswith(SWITCH)]

    def get_outputs(self) -> list[Any]:
        return list(self._session.get_outputs())

    def run(self, names: list[str], feed: Arrays) -> list[Any]:
        return list(self._session.run(names, feed | self._chosen))


def _with_switches(graph: onnx.GraphProto, source: onnx.GraphProto) -> tuple[list[onnx.NodeProto], dict[str, str]]:
    """Return the nodes with a `Where` behind every pair, and the switches by the name of what the pair gave."""
    stored = {tensor.name for tensor in graph.initializer}
    floats = {tensor.name for tensor in source.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    names = {node.name for node in graph.node}
    # The quantiser drops an activation whose limits the rounding has too; without the rounding it is needed.
    dropped = {node.output[0]: node for node in source.node if node.name not in names}
    nodes: list[onnx.NodeProto] = []
    switches: dict[str, str] = {}
    for node in graph.node:
        nodes.append(node)
        before = _before(node, makers, stored)
        if before is None:
            continue
        if node.input[0] in stored:
            if before not in floats:
                continue  # a constant that was integer from the start
            before += FLOAT
        elif before in dropped:
            activation = onnx.NodeProto()
            activation.CopyFrom(dropped[before])
            activation.input[0], activation.output[0] = before, before + FLOAT
            nodes.append(activation)
            before += FLOAT
        name = node.output[0]
        node.output[0], switches[name] = f"{name}/rounded", SWITCH + name
        nodes.append(helper.make_node("Where", [SWITCH + name, node.output[0], before], [name], name=f"where/{name}"))
    return nodes, switches


def _before(node: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto], stored: Collection[str]) -> str | None:
    """Return the tensor that a pair rounds: an activation, or the float weights that the file no longer has."""
    if node.op_type != "DequantizeLinear":
        return None
    rounded = node.input[0]
    if rounded in stored:
        return str(rounded).removesuffix("_quantized")
    maker = makers[rounded]
    return str(maker.input[0]) if maker.op_type == "QuantizeLinear" else None


def _tensors(nodes: list[onnx.NodeProto], switches: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Return, by node, the switched tensors that it reads or writes; only nodes that the quantiser can leave out."""
    rounded = {node.input[0]: node.output[0] for node in nodes if node.op_type == "QuantizeLinear"}
    pairs = [node for node in nodes if node.op_type == "DequantizeLinear"]
    given = {node.input[0]: node.output[0].removesuffix("/rounded") for node in pairs}
    found = {}
    for node in nodes:
        if node.op_type not in QUANTIZABLE or node.name.startswith("where/") or not node.name:
            continue
        written = {given.get(rounded.get(name, ""), "") for name in node.output}
        touched = frozenset((written | set(node.input)) & switches.keys())
        if touched:
            found[node.name] = touched
    return found
