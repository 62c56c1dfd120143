"""A quantized model with a switch at every tensor: each call chooses which nodes are quantized.

In a QDQ graph, a tensor is rounded by a pair of QuantizeLinear and DequantizeLinear. An activation's pair becomes an
`If` with two branches, the pair or nothing, so that no call pays for the other branch. Weights become inputs: a call
gets the float weights or the rounded ones. One session then computes the outputs for any choice of nodes.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization.operators.direct_q8 import QDQDirect8BitOp
from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.onnx_model.model_file import exceeds_protobuf_limit, read_model
from gauntlet.onnx_model.operator_types import FLOAT_OPS
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from gauntlet.runtime.subgraph import inputs_of
from tasks.quantize.static import PRODUCTS

Unit = tuple[str, ...]
"""Names of nodes that are left in float together: a convolution or another product, and what follows until the next.

A float node between two integer ones needs conversions on both sides, and breaks what the runtime fuses.
"""
BATCH = 16
SWITCH = "switch/"
QUANTIZABLE = QDQRegistry.keys() | QLinearOpsRegistry.keys()
FOLLOWING = {name for name, how in QDQRegistry.items() if issubclass(how, QDQDirect8BitOp)}
"""Operators such as Flatten, which are quantized only where their input is."""
OUTPUT_SUFFIX = "_QuantizeLinear_Input"  # of the name of what the quantizer rounds to an output of the model
KEEP_PAIRS = {"session.disable_quant_qdq": "1"}  # ONNX Runtime must not fuse Q/DQ pairs


@dataclass
class _Network:
    """The parts of a model with switches."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    activations: dict[str, str] = field(default_factory=dict)  # tensor before the pair -> tensor after it
    weights: dict[str, Array] = field(default_factory=dict)  # name that the nodes read -> float values
    rounding: list[onnx.NodeProto] = field(default_factory=list)  # the nodes that compute the rounded weights


class SwitchableModel:
    """The fully quantized model (QDQ) with switches for the nodes that can be left in float.

    `prepared` is the model with float weights that it was made from. Raises StageError when the model is too large for
    one protobuf message. With `inputs_only`, the quantizer has rounded what products and sums read, and nothing else.
    """

    def __init__(self, quantized: Path, prepared: Path, *, inputs_only: bool = False) -> None:
        proto, source = read_model(quantized), read_model(prepared).graph
        network = _with_switches(proto.graph, source)
        rounded = _rounded(proto, network.rounding)
        self._weights = {name: (floats, rounded[name]) for name, floats in network.weights.items()}
        self._activations = frozenset(network.activations.values())
        self._tensors = _read_tensors(network) if inputs_only else _tensors(network)
        self._followed = {node.name: node.input[0] for node in network.nodes if node.op_type in FOLLOWING}
        self.nodes = frozenset(self._tensors)
        self.units = units_of([node for node in network.nodes if node.name in self.nodes])
        _rebuild(proto.graph, source, network)
        self._session = open_session(proto.SerializeToString(), level="basic", settings=KEEP_PAIRS)

    def run(self, samples: NamedArrays, quantized: Collection[str]) -> NamedArrays:
        """Return the model's outputs when only these nodes are quantized.

        A tensor that a quantized node reads or writes is rounded for all its readers, as by ONNX Runtime's quantizer.
        """
        on: set[str] = set()
        for node, tensors in self._tensors.items():  # in the order of the graph, as the quantizer
            if node in quantized and (node not in self._followed or self._followed[node] in on):
                on |= tensors
        switches: NamedArrays = {SWITCH + name: np.array(name in on) for name in self._activations}
        switches |= {name: values[name in on] for name, values in self._weights.items()}
        return batched_inference(_Switched(self._session, switches), samples).run(BATCH)


def units_of(nodes: Sequence[onnx.NodeProto]) -> tuple[Unit, ...]:
    """Return the units of nodes in the order of the graph: each has a product at most, and what follows it."""
    units, has_product = list[list[str]](), True
    for node in nodes:
        is_product = node.op_type in FLOAT_OPS
        if not units or (is_product and has_product):
            units.append([])
            has_product = False
        units[-1].append(node.name)
        has_product |= is_product
    return tuple(map(tuple, units))


class _Switched:
    """A session with fixed switches: its inputs and outputs are those of the original model."""

    def __init__(self, session: Any, switches: NamedArrays) -> None:
        self._session, self._switches = session, switches
        self.get_outputs = session.get_outputs

    def get_inputs(self) -> list[Any]:
        return [i for i in self._session.get_inputs() if i.name not in self._switches]

    def run(self, names: list[str], feed: NamedArrays) -> list[Any]:
        return list(self._session.run(names, feed | self._switches))


def _with_switches(graph: onnx.GraphProto, source: onnx.GraphProto) -> _Network:
    stored = {tensor.name: tensor for tensor in graph.initializer}
    floats = {tensor.name: tensor for tensor in source.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    names = {node.name for node in graph.node}
    # The quantizer drops an activation function that the rounding's limits imply; without rounding it is needed.
    dropped = {node.output[0]: node for node in source.node if node.name not in names}
    network = _Network()
    for node in graph.node:
        rounded = node.input[0] if node.op_type == "DequantizeLinear" else ""
        if rounded.removesuffix("_quantized") in floats and rounded in stored:  # not integers of the original model
            network.weights[node.output[0]] = numpy_helper.to_array(floats[rounded.removesuffix("_quantized")])
            network.rounding.append(node)
        elif rounded in makers and makers[rounded].op_type == "QuantizeLinear":
            before, dtype = makers[rounded].input[0], stored[node.input[1]].data_type
            own = before.removesuffix(OUTPUT_SUFFIX)  # an output of the model has its name behind the pair
            network.nodes.append(_switch(makers[rounded], node, dropped.get(own), dtype))
            network.activations[before] = node.output[0]
        else:
            network.nodes.append(node)
    used = inputs_of(network.nodes)
    network.nodes = [n for n in network.nodes if n.op_type != "QuantizeLinear" or not used.isdisjoint(n.output)]
    return network


def _switch(
    quantize: onnx.NodeProto, dequantize: onnx.NodeProto, dropped: onnx.NodeProto | None, dtype: int
) -> onnx.NodeProto:
    """Return the `If` that rounds the tensor before a pair, or passes it on."""
    before, name = quantize.input[0], dequantize.output[0]
    pair, other = (onnx.NodeProto(), onnx.NodeProto()), onnx.NodeProto()
    for copy, node in zip(pair, (quantize, dequantize), strict=True):
        copy.CopyFrom(node)
    other.CopyFrom(dropped or helper.make_node("Identity", [before], [name]))
    pair[0].output[0] = pair[1].input[0] = f"{name}/integer"
    pair[1].output[0], other.input[0], other.output[0] = f"{name}/rounded", before, f"{name}/float"

    def branch(nodes: Sequence[onnx.NodeProto]) -> onnx.GraphProto:
        end = nodes[-1].output[0]
        return helper.make_graph(nodes, end, [], [helper.make_tensor_value_info(end, dtype, None)])

    return helper.make_node("If", [SWITCH + name], [name], then_branch=branch(pair), else_branch=branch([other]))


def _rounded(proto: onnx.ModelProto, rounding: Sequence[onnx.NodeProto]) -> dict[str, Array]:
    """Return the rounded weights as the runtime computes them from the stored integers."""
    if not rounding:
        return {}
    used, names = inputs_of(rounding), [node.output[0] for node in rounding]
    dtypes = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    outputs = [helper.make_tensor_value_info(n.output[0], dtypes[n.input[1]], None) for n in rounding]
    graph = helper.make_graph(rounding, "weights", [], outputs, [t for t in proto.graph.initializer if t.name in used])
    model = helper.make_model(graph, opset_imports=proto.opset_import, ir_version=proto.ir_version)
    if exceeds_protobuf_limit(model):
        raise StageError("the model is too large for a repair: its weights exceed the 2 GB of one protobuf message")
    return dict(zip(names, open_session(model.SerializeToString(), level="off").run(names, {}), strict=True))


def _rebuild(graph: onnx.GraphProto, source: onnx.GraphProto, network: _Network) -> None:
    """Replace the graph's nodes by the network's, with an input for every switch and for all weights."""
    used = inputs_of(network.nodes).union(output.name for output in graph.output)
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    missing = used.difference(tensor.name for tensor in kept)
    kept += [tensor for tensor in source.initializer if tensor.name in missing]  # limits of dropped activations
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(network.nodes)
    graph.initializer.extend(kept)
    for name, floats in network.weights.items():
        dtype = helper.np_dtype_to_tensor_dtype(floats.dtype)
        graph.input.append(helper.make_tensor_value_info(name, dtype, floats.shape))
    for name in network.activations.values():
        graph.input.append(helper.make_tensor_value_info(SWITCH + name, TensorProto.BOOL, []))


def _tensors(network: _Network) -> dict[str, frozenset[str]]:
    """Return the switched tensors that each node reads or writes, for all nodes that the quantizer can leave out."""
    switched = network.weights.keys() | set(network.activations.values())
    nodes = [node for node in network.nodes if node.op_type in QUANTIZABLE and node.name]
    written = {node.name: {network.activations.get(name, "") for name in node.output} for node in nodes}
    tensors = {node.name: frozenset(switched & (written[node.name] | set(node.input))) for node in nodes}
    return {name: touched for name, touched in tensors.items() if touched}


def _read_tensors(network: _Network) -> dict[str, frozenset[str]]:
    """Return the switched tensors that each node reads, for all nodes that read no others."""
    switched = network.weights.keys() | set(network.activations.values())
    nodes = [node for node in network.nodes if node.op_type in (*PRODUCTS, "Add") and node.name]
    return {node.name: frozenset(node.input) for node in nodes if switched.issuperset(node.input)}
