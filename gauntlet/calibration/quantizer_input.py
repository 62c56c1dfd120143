"""Make a valid graph fit for ONNX Runtime's quantizer, which fails on some, or writes invalid files for them."""

from collections.abc import Iterable
from graphlib import TopologicalSorter

import onnx

from gauntlet.core.errors import StageError
from gauntlet.onnx_model.graph import all_nodes, opset_versions, replace_model
from gauntlet.onnx_model.model_file import bodies, exceeds_protobuf_limit
from gauntlet.runtime.session import open_session

PER_CHANNEL_OPSET = 13
"""From this version on, QuantizeLinear and DequantizeLinear have an axis."""
FREE_WEIGHTS_IR_VERSION = 4
"""From this version on, an initializer need not be an input."""
SUFFIXES = (
    *("_scale", "_zero_point", "_quantized"),
    *("_QuantizeLinear_Input", "_QuantizeLinear_Output", "_DequantizeLinear_Input", "_DequantizeLinear_Output"),
)
"""What the quantizer appends to a tensor's name to name the tensors that it adds."""


def mend_graph(proto: onnx.ModelProto) -> None:
    """Raise the opset, make weights initializers alone, and names unique and unlike those of the quantizer."""
    lift_constants(proto.graph)
    keep_weights_as_initializers_alone(proto)  # before IR version 4, the converter refuses weights that are no inputs
    raise_opset(proto)
    lift_constants(proto.graph)  # the converter adds some
    rename_lookalikes(proto.graph)
    name_nodes(proto.graph)


def raise_opset(proto: onnx.ModelProto) -> None:
    """Raise the opset to 13 where ONNX's converter can do that; otherwise leave the model as it is.

    The converter does not enter the graphs of If, Loop and Scan: with nodes there that the versions define differently,
    the model stays as it is.
    """
    version = opset_versions(proto).get("ai.onnx", PER_CHANNEL_OPSET)
    if version >= PER_CHANNEL_OPSET or exceeds_protobuf_limit(proto):
        return
    inner = [node for outer in proto.graph.node for body in bodies(outer) for node in all_nodes(body)]
    if any(_definition(node, version) != _definition(node, PER_CHANNEL_OPSET) for node in inner):
        return
    try:
        raised = onnx.version_converter.convert_version(proto, PER_CHANNEL_OPSET)
        open_session(raised.SerializeToString(), level="off")
    except (RuntimeError, ValueError, StageError):  # no adapter for an operator, or a result that does not load
        return
    replace_model(proto, raised)


def _definition(node: onnx.NodeProto, version: int) -> int | None:
    """Return the version that defined a node's operator; None for one that the standard does not have."""
    try:
        return int(onnx.defs.get_schema(node.op_type, version, node.domain).since_version)
    except onnx.defs.SchemaError:
        return None


def lift_constants(graph: onnx.GraphProto) -> None:
    """Turn the graph's Constant nodes with a tensor into initializers, where the quantizer finds weights."""
    kept = []
    for node in graph.node:
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx") and value is not None:
            tensor = graph.initializer.add()
            tensor.CopyFrom(value)
            tensor.name = node.output[0]
        else:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)


def keep_weights_as_initializers_alone(proto: onnx.ModelProto) -> None:
    """Remove weights from the inputs and from the stored shapes, which differ where the quantizer transposes one."""
    stored = {tensor.name for tensor in proto.graph.initializer}
    for values in (proto.graph.input, proto.graph.value_info):
        kept = [value for value in values if value.name not in stored]
        del values[:]
        values.extend(kept)
    proto.ir_version = max(proto.ir_version, FREE_WEIGHTS_IR_VERSION)


def rename_lookalikes(graph: onnx.GraphProto) -> None:
    """Rename inner tensors that are named like what the quantizer would add for another one: `x_scale` beside `x`."""
    public = {value.name for value in (*graph.input, *graph.output)}
    names = dict.fromkeys([tensor.name for tensor in graph.initializer])
    names |= dict.fromkeys(name for node in graph.node for name in node.output if name)
    taken, renamed = names.keys() | public, dict[str, str]()
    for name in names.keys() - public:
        if any(name.endswith(suffix) and name.removesuffix(suffix) in taken for suffix in SUFFIXES):
            renamed[name] = _unused(f"{name}/original", taken)
            taken.add(renamed[name])
    for node in all_nodes(graph):
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    for value in (*graph.initializer, *graph.value_info):
        value.name = renamed.get(value.name, value.name)


def name_nodes(graph: onnx.GraphProto) -> None:
    """Give every node a name of its own: recipes refer to nodes by name."""
    taken: set[str] = set()
    for number, node in enumerate(graph.node):
        if not node.name or node.name in taken:
            node.name = _unused(f"{node.op_type}_{number}", taken)
        taken.add(node.name)


def _unused(name: str, taken: Iterable[str]) -> str:
    while name in taken:
        name += "_"
    return name


def sort_nodes(graph: onnx.GraphProto) -> None:
    """Sort the nodes so that each follows the producers of what it reads, also inside its If, Loop or Scan bodies.

    ONNX Runtime's quantizer sorts without looking into bodies.
    """
    nodes = list(graph.node)
    producers = {name: number for number, node in enumerate(nodes) for name in node.output if name}
    reads = {number: _names_read(node) & producers.keys() for number, node in enumerate(nodes)}
    before = {number: {producers[name] for name in names} for number, names in reads.items()}
    order = list(TopologicalSorter(before).static_order())
    del graph.node[:]
    graph.node.extend(nodes[number] for number in order)


def _names_read(node: onnx.NodeProto) -> set[str]:
    inner = (inside for body in bodies(node) for inside in all_nodes(body))
    return {name for each in (node, *inner) for name in each.input}
