"""A quantised model with a switch at every tensor: which nodes are quantised is decided at each call, not in the file.

In a QDQ graph, quantising is a pair of QuantizeLinear and DequantizeLinear on a tensor. An activation's pair becomes an
`If` with two branches, the pair or nothing, so that no call pays for the one it does not take. Weights become inputs: a
call is given those of the float model, or the rounded ones. One session then tells what any choice of nodes would cost.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.onnx_model.model_file import exceeds_protobuf_limit, read_model
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session

BATCH = 16
SWITCH = "switch/"
QUANTIZABLE = QDQRegistry.keys() | QLinearOpsRegistry.keys()
KEEP_PAIRS = {"session.disable_quant_qdq": "1"}
"""Nothing may be fused that a switch must be able to take apart."""


@dataclass
class _Network:
    """The parts of a model with switches."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    activations: dict[str, str] = field(default_factory=dict)
    """By the tensor before the pair, the one behind it."""
    weights: dict[str, Array] = field(default_factory=dict)
    """In float, by the name that the nodes read."""
    rounding: list[onnx.NodeProto] = field(default_factory=list)
    """The nodes that make the rounded weights."""


class SwitchableModel:
    """The model, and which of its nodes can be left in float."""

    def __init__(self, quantized: Path, prepared: Path) -> None:
        """Read the fully quantised model (QDQ), and the one with float weights that it was made from.

        Raises:
            StageError: when the model is too large for one message in memory.
        """
        proto, source = read_model(quantized), read_model(prepared).graph
        network = _with_switches(proto.graph, source)
        rounded = _rounded(proto, network.rounding)
        self._weights = {name: (floats, rounded[name]) for name, floats in network.weights.items()}
        self._activations = frozenset(network.activations.values())
        self._tensors = _tensors(network)
        _rebuild(proto.graph, source, network)
        self._session = open_session(proto.SerializeToString(), level="basic", settings=KEEP_PAIRS)

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes that can be left in float."""
        return frozenset(self._tensors)

    def run(self, samples: NamedArrays, quantized: Collection[str]) -> NamedArrays:
        """Return the model's outputs when only these nodes are quantised.

        A tensor is rounded when a quantised node reads or writes it, for all its readers: so ONNX Runtime's quantiser
        does it.
        """
        on = {tensor for node in quantized for tensor in self._tensors[node]}
        chosen: NamedArrays = {SWITCH + name: np.array(name in on) for name in self._activations}
        chosen |= {name: values[name in on] for name, values in self._weights.items()}
        return batched_inference(_Switched(self._session, chosen), samples).run(BATCH)


class _Switched:
    """A session whose switches are set: it takes and gives what the model itself does."""

    def __init__(self, session: Any, chosen: Mapping[str, Any]) -> None:
        self._session, self._chosen = session, dict(chosen)

    def get_inputs(self) -> list[Any]:
        return [i for i in self._session.get_inputs() if i.name not in self._chosen]

    def get_outputs(self) -> list[Any]:
        return list(self._session.get_outputs())

    def run(self, names: list[str], feed: NamedArrays) -> list[Any]:
        return list(self._session.run(names, feed | self._chosen))


def _with_switches(graph: onnx.GraphProto, source: onnx.GraphProto) -> _Network:
    stored = {tensor.name: tensor for tensor in graph.initializer}
    floats = {tensor.name: tensor for tensor in source.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    names = {node.name for node in graph.node}
    # The quantiser drops an activation whose limits the rounding has too; without the rounding it is needed.
    dropped = {node.output[0]: node for node in source.node if node.name not in names}
    network = _Network()
    for node in graph.node:
        rounded = node.input[0] if node.op_type == "DequantizeLinear" else ""
        if rounded.removesuffix("_quantized") in floats and rounded in stored:  # not what was integer from the start
            network.weights[node.output[0]] = numpy_helper.to_array(floats[rounded.removesuffix("_quantized")])
            network.rounding.append(node)
        elif rounded in makers and makers[rounded].op_type == "QuantizeLinear":
            before = makers[rounded].input[0]
            kind = stored[node.input[1]].data_type
            network.nodes.append(_switch(makers[rounded], node, dropped.get(before), kind))
            network.activations[before] = node.output[0]
        else:
            network.nodes.append(node)
    used = {name for node in network.nodes for name in _read_by(node)}
    network.nodes = [n for n in network.nodes if n.op_type != "QuantizeLinear" or not used.isdisjoint(n.output)]
    return network


def _switch(there: onnx.NodeProto, back: onnx.NodeProto, dropped: onnx.NodeProto | None, kind: int) -> onnx.NodeProto:
    """Return the `If` that rounds the tensor before a pair, or hands it on."""
    before, name = there.input[0], back.output[0]
    pair, other = (onnx.NodeProto(), onnx.NodeProto()), onnx.NodeProto()
    for copy, node in zip(pair, (there, back), strict=True):
        copy.CopyFrom(node)
    other.CopyFrom(dropped or helper.make_node("Identity", [before], [name]))
    pair[0].output[0] = pair[1].input[0] = f"{name}/integer"
    pair[1].output[0], other.input[0], other.output[0] = f"{name}/rounded", before, f"{name}/float"

    def branch(nodes: Sequence[onnx.NodeProto]) -> onnx.GraphProto:
        end = nodes[-1].output[0]
        return helper.make_graph(nodes, end, [], [helper.make_tensor_value_info(end, kind, None)])

    return helper.make_node("If", [SWITCH + name], [name], then_branch=branch(pair), else_branch=branch([other]))


def _read_by(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, those of its inner graphs included."""
    yield from node.input
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            for inner in body.node:
                yield from _read_by(inner)


def _rounded(proto: onnx.ModelProto, rounding: Sequence[onnx.NodeProto]) -> dict[str, Array]:
    """Return what the runtime itself makes of the stored integers."""
    used = {name for node in rounding for name in node.input}
    names = [node.output[0] for node in rounding]
    kinds = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    made = [helper.make_tensor_value_info(node.output[0], kinds[node.input[1]], None) for node in rounding]
    graph = helper.make_graph(rounding, "weights", [], made, [t for t in proto.graph.initializer if t.name in used])
    alone = helper.make_model(graph, opset_imports=proto.opset_import, ir_version=proto.ir_version)
    if exceeds_protobuf_limit(alone):
        raise StageError("the model is too large to be repaired: its weights do not fit one message of 2 GB")
    values = open_session(alone.SerializeToString(), level="off").run(names, {}) if names else []
    return dict(zip(names, values, strict=True))


def _rebuild(graph: onnx.GraphProto, source: onnx.GraphProto, network: _Network) -> None:
    """Make the graph that of the network, with an input for every switch and for all weights."""
    used = {name for node in network.nodes for name in _read_by(node)} | {output.name for output in graph.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    lacking = used - {tensor.name for tensor in kept}
    kept += [tensor for tensor in source.initializer if tensor.name in lacking]  # the limits of dropped activations
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(network.nodes)
    graph.initializer.extend(kept)
    for name, floats in network.weights.items():
        kind = helper.np_dtype_to_tensor_dtype(floats.dtype)
        graph.input.append(helper.make_tensor_value_info(name, kind, floats.shape))
    for name in network.activations.values():
        graph.input.append(helper.make_tensor_value_info(SWITCH + name, TensorProto.BOOL, []))


def _tensors(network: _Network) -> dict[str, frozenset[str]]:
    """Return, by node, the switched tensors that it reads or writes; only nodes that the quantiser can leave out."""
    switched = network.weights.keys() | set(network.activations.values())
    found = {}
    for node in network.nodes:
        if node.op_type in QUANTIZABLE and node.name:
            written = {network.activations.get(name, "") for name in node.output}
            touched = frozenset((written | set(node.input)) & switched)
            if touched:
                found[node.name] = touched
    return found
