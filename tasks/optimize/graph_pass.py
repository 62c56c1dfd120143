"""Apply one graph pass to a model file."""

from pathlib import Path
from typing import Annotated

import onnx

from gauntlet.core.unions import OneOf
from gauntlet.onnx_model.model_file import read_for_editing, read_graph, write_model
from gauntlet.runtime.session import supported_ir_version
from tasks.optimize.base import Pass
from tasks.optimize.fold_affine import FoldAffine
from tasks.optimize.in_memory_pass import PassGroup
from tasks.optimize.onnxoptimizer import OnnxOptimizer
from tasks.optimize.onnxscript import OnnxScript, OnnxScriptRewriter
from tasks.optimize.onnxsim import OnnxSim
from tasks.optimize.onnxslim import OnnxSlim
from tasks.optimize.ort import OrtGraph
from tasks.optimize.python_pass import PythonPass
from tasks.optimize.transformers import TransformerFusions

LIBRARIES = OrtGraph, OnnxOptimizer, OnnxSim, OnnxSlim, OnnxScript, OnnxScriptRewriter, TransformerFusions
PASSES = (*LIBRARIES, FoldAffine, PythonPass)
GraphPass = Annotated[Pass, OneOf("pass", PASSES)]

LAYOUT_DOMAINS = {"com.microsoft.nchwc", "com.ms.internal.nhwc"}  # of operators in a processor-specific layout


def apply_pass(graph_pass: GraphPass, model: Path, destination: Path) -> onnx.ModelProto:
    """Apply a pass to a copy and return the model written to `destination`, with the metadata of the original.

    Exceptions of the pass propagate.
    """
    graph_pass.apply(model, destination)
    before, after = read_graph(model), read_for_editing(destination)
    metadata = {entry.key: entry.value for proto in (after, before) for entry in proto.metadata_props}
    onnx.helper.set_model_props(after, metadata)
    after.ir_version = min(after.ir_version, supported_ir_version())
    write_model(after, destination)
    return after


def halves(graph_pass: GraphPass) -> tuple[GraphPass, ...]:
    """Return the two halves of a group of passes; empty for a single pass."""
    return graph_pass.halves() if isinstance(graph_pass, PassGroup) else ()


def layout_nodes(proto: onnx.ModelProto) -> int:
    """Return the number of nodes in a processor-specific layout."""
    return sum(node.domain in LAYOUT_DOMAINS for node in proto.graph.node)
