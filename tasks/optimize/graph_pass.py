"""One pass on one file."""

from pathlib import Path
from typing import Annotated

import onnx
from pydantic import Field

from tasks.model_file import read_graph, read_to_change, write_model
from tasks.optimize.onnxoptimizer import OnnxOptimizer
from tasks.optimize.onnxscript import OnnxScript, OnnxScriptRewriter
from tasks.optimize.onnxsim import OnnxSim
from tasks.optimize.onnxslim import OnnxSlim
from tasks.optimize.ort import OrtGraph
from tasks.optimize.own import OwnPass
from tasks.runtime.session import supported_ir_version

GraphPass = Annotated[
    OrtGraph | OnnxOptimizer | OnnxSim | OnnxSlim | OnnxScript | OnnxScriptRewriter | OwnPass,
    Field(discriminator="kind"),
]

LAYOUT_DOMAINS = {"com.microsoft.nchwc", "com.ms.internal.nhwc"}
"""Operators in a layout that ONNX Runtime chose for the processor of this machine."""


def apply_pass(graph_pass: GraphPass, source: Path, target: Path) -> onnx.ModelProto:
    """Apply a pass to a copy; return what is in `target` then. What the model says of itself stays, signature included.

    It raises what the pass raises.
    """
    graph_pass.apply(source, target)
    before, after = read_graph(source), read_to_change(target)
    told = {entry.key: entry.value for model in (after, before) for entry in model.metadata_props}
    onnx.helper.set_model_props(after, told)
    after.ir_version = min(after.ir_version, supported_ir_version())
    write_model(after, target)
    return after


def halves(graph_pass: GraphPass) -> tuple[GraphPass, ...]:
    """Return the two halves of a group of passes; none for what cannot be taken apart."""
    return graph_pass.halves() if isinstance(graph_pass, OnnxOptimizer | OnnxScriptRewriter) else ()


def layout_nodes(proto: onnx.ModelProto) -> int:
    """Return how many nodes are laid out for one processor."""
    return sum(node.domain in LAYOUT_DOMAINS for node in proto.graph.node)
