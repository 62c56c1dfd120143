"""The integer share of a model's arithmetic, counted in the kernels that the runtime executes."""

import math
import tempfile
from pathlib import Path

from pydantic import Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.frozen import Frozen, Number
from gauntlet.onnx_model.graph import Shape
from gauntlet.onnx_model.macs import node_macs
from gauntlet.onnx_model.model_file import copy_model, read_graph, write_model
from gauntlet.onnx_model.operator_types import FLOAT_OPS, INTEGER_OPS
from gauntlet.runtime.profiler_trace import kernel_events, read_events
from gauntlet.runtime.session import open_session


class IntegerShare(Frozen):
    """Multiply-accumulate operations (MACs) of convolutions and matrix products for one sample."""

    share: Number = Field(description="MACs in integer kernels over all MACs; NaN without MACs")
    macs: int
    float_nodes: int
    integer_nodes: int
    leftover_qdq_nodes: int = Field(description="QuantizeLinear and DequantizeLinear that were not fused away")


def measure_integer_share(model: Path, sample: NamedArrays) -> IntegerShare:
    """Run one call's inputs with ONNX Runtime's profiler, and count the MACs of integer and of float kernels.

    Quantized weights that a float kernel reads through DequantizeLinear make a smaller file, but not a faster model.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        optimized, named = folder / "optimized.onnx", _with_unique_names(model, folder)
        # The last level only chooses layouts, and pads channels to the processor's width, which would count as MACs.
        session = open_session(named, level="extended", save_to=optimized, profile_to=folder / "profile")
        session.run(None, sample)
        kernels = kernel_events(read_events(Path(session.end_profiling())))
        graph = read_graph(optimized).graph
    stored: dict[str, Shape] = {t.name: tuple(t.dims) for t in graph.initializer}
    for node in graph.node:  # weights that stay quantized in the file and become float at each call
        if node.op_type == "DequantizeLinear" and node.input[0] in stored:
            stored[node.output[0]] = stored[node.input[0]]
    nodes = {node.name: node for node in graph.node}
    macs: dict[bool, list[int]] = {True: [], False: []}
    for name, event in kernels:
        operator = event["args"]["op_name"]
        if name in nodes and operator in INTEGER_OPS | FLOAT_OPS:
            sides = (event["args"][f"{side}_type_shape"] for side in ("input", "output"))
            inputs, made = ([tuple(*shape.values()) for shape in side] for side in sides)
            # The profiler omits stored weights that the runtime packed, so only the first input's place is certain.
            shapes = dict(zip(nodes[name].input, inputs, strict=False)) | stored
            shapes |= {nodes[name].input[0]: inputs[0], nodes[name].output[0]: made[0]}
            macs[operator in INTEGER_OPS].append(node_macs(nodes[name], shapes) or 0)
    integer, total = sum(macs[True]), sum(macs[True]) + sum(macs[False])
    return IntegerShare(
        share=integer / total if total else math.nan,
        macs=total,
        float_nodes=len(macs[False]),
        integer_nodes=len(macs[True]),
        leftover_qdq_nodes=sum(e["args"]["op_name"] in ("QuantizeLinear", "DequantizeLinear") for _, e in kernels),
    )


def _with_unique_names(model: Path, folder: Path) -> Path:
    """Return the model, or a copy with new node names where they are not unique, as the profiler needs."""
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
