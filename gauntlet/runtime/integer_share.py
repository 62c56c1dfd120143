"""Which part of the arithmetic really became integer: counted in the kernels that the runtime executes."""

import math
import tempfile
from pathlib import Path
from typing import Any

import onnx
from pydantic import Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.frozen import Frozen, Number
from gauntlet.onnx_model.model_file import copy_model, read_graph, write_model
from gauntlet.onnx_model.operator_types import FLOAT_OPS, INTEGER_OPS
from gauntlet.runtime.profiler_trace import kernel_events, read_events
from gauntlet.runtime.session import open_session


class IntegerShare(Frozen):
    """Multiply-accumulate operations (MACs) of convolutions and matrix products for one sample."""

    share: Number = Field(description="MACs in integer kernels over all MACs; NaN where there are none")
    macs: int
    float_nodes: int
    integer_nodes: int
    leftover_qdq_nodes: int = Field(description="QuantizeLinear and DequantizeLinear that were not fused away")


def measure_integer_share(model: Path, sample: NamedArrays) -> IntegerShare:
    """Run one call's inputs with ONNX Runtime's profiler on, and count what became integer.

    A small file is no sign of speed: quantised weights that a float kernel reads through DequantizeLinear save space
    and no time. This tells the two apart without a clock.
    """
    with tempfile.TemporaryDirectory() as folder:
        optimised = Path(folder) / "optimised.onnx"
        # The last level only chooses layouts, and pads channels to the processor's width: MACs that nobody asked for.
        session = open_session(
            _named(model, Path(folder)), level="extended", save_to=optimised, profile_to=Path(folder) / "profile"
        )
        session.run(None, sample)
        ran = kernel_events(read_events(Path(session.end_profiling())))
        graph = read_graph(optimised).graph
    shapes = {t.name: list(t.dims) for t in graph.initializer}
    for node in graph.node:  # weights that stay quantised in the file and become float at each call
        if node.op_type == "DequantizeLinear" and node.input[0] in shapes:
            shapes[node.output[0]] = shapes[node.input[0]]
    makers = {node.name: node for node in graph.node}
    macs: dict[bool, int] = {True: 0, False: 0}
    nodes: dict[bool, int] = {True: 0, False: 0}
    leftovers = 0
    for kernel in ran:
        kind, node = kernel.operator, makers.get(kernel.node)
        leftovers += kind in ("QuantizeLinear", "DequantizeLinear")
        if node is not None and kind in INTEGER_OPS | FLOAT_OPS:
            integer = kind in INTEGER_OPS
            nodes[integer] += 1
            macs[integer] += _macs(node, kernel.shapes, shapes)
    total = sum(macs.values())
    return IntegerShare(
        share=macs[True] / total if total else math.nan,
        macs=total,
        float_nodes=nodes[False],
        integer_nodes=nodes[True],
        leftover_qdq_nodes=leftovers,
    )


def _named(model: Path, folder: Path) -> Path:
    """Return the model; a copy with new names where nodes cannot be told apart by theirs, as the profiler must."""
    graph = read_graph(model).graph
    if len({node.name for node in graph.node} - {""}) == len(graph.node):
        return model
    named = folder / "named.onnx"
    copy_model(model, named)
    proto = read_graph(named)
    for number, node in enumerate(proto.graph.node):
        node.name = f"node_{number}"
    write_model(proto, named)
    return named


def _macs(node: onnx.NodeProto, event: dict[str, Any], shapes: dict[str, list[int]]) -> int:
    """Return output values x length of the sum behind each. Activations' shapes are the profiler's."""
    output = math.prod(next(iter(event["output_type_shape"][0].values())))
    left = next(iter(event["input_type_shape"][0].values()))
    if "Conv" in node.op_type:
        place = 3 if node.op_type == "QLinearConv" else 1
        # (outputs, inputs / groups, *kernel); a transposed one's are (inputs, outputs / groups, *kernel), as each input
        # value is spread. The profiler leaves out stored weights that the runtime packed, and no computed ones.
        weights = shapes.get(node.input[place]) or next(iter(event["input_type_shape"][place].values()))
        values = math.prod(left) if node.op_type == "ConvTranspose" else output
        return int(values * math.prod(weights[1:]))
    transposed = any(a.name == "transA" and a.i for a in node.attribute)
    return int(output * (left[-2] if transposed else left[-1]))
