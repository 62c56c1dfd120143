"""Make a valid graph fit for ONNX Runtime's quantizer, which fails on some, or writes invalid files for them."""

from collections import Counter
from contextlib import suppress

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gauntlet.core.arrays import Array
from gauntlet.core.errors import StageError
from gauntlet.onnx_model.graph import (
    all_nodes,
    attributes_of,
    import_standard_once,
    opset_versions,
    replace_model,
    set_attributes,
    unused_name,
)
from gauntlet.onnx_model.model_file import bodies, exceeds_protobuf_limit
from gauntlet.onnx_model.normalization.constants import drop_default_inputs, lift_constants
from gauntlet.onnx_model.normalization.opset import PER_CHANNEL_OPSET, raise_opset
from gauntlet.runtime.session import open_session

FREE_WEIGHTS_IR_VERSION = 4
"""From this version on, an initializer need not be an input."""
OPTIONAL_BIAS_OPSET = 11
"""The first opset in which a Gemm need not have a bias."""
SUFFIXES = (
    *("_scale", "_zero_point", "_quantized"),
    *("_QuantizeLinear_Input", "_QuantizeLinear_Output", "_DequantizeLinear_Input", "_DequantizeLinear_Output"),
)
"""What the quantizer appends to a tensor's name to name the tensors that it adds."""


def mend_graph(proto: onnx.ModelProto) -> None:
    """Raise the opset, make weights initializers alone, names unlike the quantizer's, and Gemm nodes plain."""
    import_standard_once(proto, PER_CHANNEL_OPSET)
    for node in all_nodes(proto.graph):
        while node.input and not node.input[-1]:  # such as a bias, of which the quantizer reads the values
            node.input.pop()
    with suppress(StageError):  # training information, which onnx_ir does not keep
        lift_constants(proto)
    keep_weights_as_initializers_alone(proto)  # before IR version 4, the converter refuses weights that are no inputs
    raise_opset_for_channels(proto)
    keep_weights_as_initializers_alone(proto)  # the converter stores shapes of weights again
    rename_lookalikes(proto.graph)
    name_nodes(proto.graph)
    copy_shared_weights(proto.graph)
    if opset_versions(proto)["ai.onnx"] >= OPTIONAL_BIAS_OPSET:
        make_gemms_plain(proto.graph)


def raise_opset_for_channels(proto: onnx.ModelProto) -> None:
    """Raise the opset to that of weights per channel where the result loads; otherwise leave the model as it is.

    The converter does not enter the graphs of If, Loop and Scan: with nodes there that the versions define differently,
    the model stays as it is.
    """
    version = opset_versions(proto).get("ai.onnx", PER_CHANNEL_OPSET)
    if version >= PER_CHANNEL_OPSET or exceeds_protobuf_limit(proto):
        return
    inner = [node for outer in proto.graph.node for body in bodies(outer) for node in all_nodes(body)]
    if any(_definition(node, version) != _definition(node, PER_CHANNEL_OPSET) for node in inner):
        return
    raised = onnx.ModelProto()
    raised.CopyFrom(proto)
    with suppress(StageError):  # no adapter for an operator, or a result that does not load
        raise_opset(raised, PER_CHANNEL_OPSET, onnx.IR_VERSION)
        open_session(raised.SerializeToString(), level="off")
        replace_model(proto, raised)


def _definition(node: onnx.NodeProto, version: int) -> int | None:
    """Return the version that defined a node's operator; None for one that the standard does not have."""
    try:
        return int(onnx.defs.get_schema(node.op_type, version, node.domain).since_version)
    except onnx.defs.SchemaError:
        return None


def keep_weights_as_initializers_alone(proto: onnx.ModelProto) -> None:
    """Remove weights from the inputs, and from the stored shapes all that no node computes.

    The shape of a weight differs where the quantizer transposes one, and it may add a tensor of a former one's name.
    """
    drop_default_inputs(proto)
    computed = {name for node in proto.graph.node for name in node.output}
    kept = [value for value in proto.graph.value_info if value.name in computed]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(kept)
    proto.ir_version = max(proto.ir_version, FREE_WEIGHTS_IR_VERSION)


def rename_lookalikes(graph: onnx.GraphProto) -> None:
    """Rename inner tensors that are named like what the quantizer would add for another one: `x_scale` beside `x`."""
    public = {value.name for value in (*graph.input, *graph.output)}
    names = dict.fromkeys([tensor.name for tensor in graph.initializer])
    names |= dict.fromkeys(name for node in graph.node for name in node.output if name)
    taken, renamed = names.keys() | public, dict[str, str]()
    for name in names.keys() - public:
        if any(name.endswith(suffix) and name.removesuffix(suffix) in taken for suffix in SUFFIXES):
            renamed[name] = unused_name(f"{name}/original", taken)
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
            node.name = unused_name(f"{node.op_type}_{number}", taken)
        taken.add(node.name)


def copy_shared_weights(graph: onnx.GraphProto) -> None:
    """Give every product a copy of a shared bias, whose scale is that of its sums, and of weights that are transposed.

    The quantizer would round the bias by the scale of its first reader, and transpose the weights once a reader.
    """
    stored = {tensor.name: tensor for tensor in graph.initializer}
    readers = Counter(name for node in all_nodes(graph) for name in node.input)
    for node in graph.node:
        places = [1] if node.op_type == "Gemm" and attributes_of(node).get("transB") else []
        places += [2] if node.op_type in ("Conv", "ConvTranspose", "Gemm") and len(node.input) > 2 else []
        for place in places:
            name = node.input[place]
            if name in stored and readers[name] > 1:
                copied = graph.initializer.add()
                copied.CopyFrom(stored[name])
                copied.name = node.input[place] = unused_name(f"{name}/{node.name}", stored)


def make_gemms_plain(graph: onnx.GraphProto) -> None:
    """Fold factors into stored weights and biases, store each bias as a vector, and add a matrix by a node of its own.

    Of another form, ONNX Runtime's quantizer divides by a beta of 0, drops any other beta, and fails on a bias that is
    a scalar or a matrix. Computed weights keep their factor, and computed biases stay as they are.
    """
    stored = {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.data_location != TensorProto.EXTERNAL and tensor.data_type == TensorProto.FLOAT
    }
    taken = {value.name for value in (*graph.initializer, *graph.input)}
    taken.update(name for node in graph.node for name in (*node.output, node.name))
    for node in [node for node in graph.node if node.op_type == "Gemm" and node.domain in ("", "ai.onnx")]:
        alpha, beta = (attributes_of(node).get(name, 1.0) for name in ("alpha", "beta"))
        weights, bias = node.input[1], node.input[2] if len(node.input) > 2 and beta else ""
        if alpha != 1 and weights in stored:
            node.input[1] = _store(graph, weights, np.multiply(numpy_helper.to_array(stored[weights]), alpha), taken)
            set_attributes(node, alpha=1.0)
        if not bias:
            del node.input[2:]
            set_attributes(node, beta=1.0)
        elif bias in stored:
            before = numpy_helper.to_array(stored[bias])
            columns = stored[weights].dims[0 if attributes_of(node).get("transB") else 1] if weights in stored else None
            after = np.multiply(_vector(before, columns), beta)
            if beta != 1 or after.shape != before.shape:
                node.input[2] = _store(graph, bias, after, taken)
                set_attributes(node, beta=1.0)
            if after.ndim == 2:
                _add_separately(graph, node, taken)


def _store(graph: onnx.GraphProto, original: str, values: Array, taken: set[str]) -> str:
    name = unused_name(f"{original}/plain", taken)
    taken.add(name)
    graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    return name


def _add_separately(graph: onnx.GraphProto, node: onnx.NodeProto, taken: set[str]) -> None:
    """Take the bias out of a Gemm; a node behind it adds it."""
    output, product = node.output[0], unused_name(f"{node.output[0]}/product", taken)
    adding = helper.make_node("Add", [product, node.input[2]], [output], name=unused_name(f"{node.name}/bias", taken))
    taken.update((product, adding.name))
    node.output[0] = product
    del node.input[2:]
    graph.node.insert(list(graph.node).index(node) + 1, adding)


def _vector(bias: Array, columns: int | None) -> Array:
    """Return a scalar, or a bias of one row, with one entry a column of the product; others as they are."""
    if columns is None or bias.size not in (1, columns) or (bias.size > 1 and bias.shape[-1] == 1):
        return bias
    return np.broadcast_to(bias.reshape(-1), (columns,))
