"""What hinders a runtime, a quantizer or a graph pass, and what a step of the normalization mends."""

from collections.abc import Callable

import onnx

from gauntlet.onnx_model.graph import all_nodes, format_shape, node_label, opset_versions, without_weights
from gauntlet.onnx_model.normalization.branches import fold_branches, if_nodes
from gauntlet.onnx_model.normalization.constants import default_inputs
from gauntlet.onnx_model.normalization.opset import PER_CHANNEL_OPSET
from gauntlet.onnx_model.normalization.order import first_unsorted
from gauntlet.onnx_model.normalization.shapes import conflicting_shapes, keep_zero_padding
from gauntlet.onnx_model.normalization.tidy import remove_unused, unclear_node_names
from wings.inspection.library.diagnosis.context import ModelContext
from wings.inspection.library.diagnosis.findings import Fault, Finding

NEW_OPSET = 17
"""To which an old opset is raised."""
WEIGHTED = {"Conv", "ConvTranspose", "Gemm", "MatMul"}


def unsorted_nodes(context: ModelContext) -> Finding | None:
    """Check for a node before one whose output it reads, in inner graphs as well."""
    node = first_unsorted(context.graph)
    if node is None:
        return None
    cause = f"{node_label(node)} comes before a node whose output it reads, which the ONNX standard forbids"
    return Finding(fault="unsorted_nodes", cause=cause, fix="sort the nodes with --fix", fixable=True)


def repeated_names(context: ModelContext) -> Finding | None:
    """Check for nodes of one graph that have the same name."""
    _, repeated = unclear_node_names(context.proto)
    if not repeated:
        return None
    cause = f"{repeated} nodes have the name of another one: ONNX Runtime does not load such a model"
    return Finding(fault="repeated_names", cause=cause, fix="give them names of their own with --fix", fixable=True)


def wrong_shapes(context: ModelContext) -> Finding | None:
    """Compare the stored shapes with inferred ones: quantizers and the checker refuse a model where they differ."""
    try:
        conflicts = conflicting_shapes(context.proto)
    except Exception:  # inference refuses an invalid graph, which the checker explains
        return None
    if not conflicts:
        return None
    name, (stored, inferred) = next(iter(conflicts.items()))
    cause = f"{len(conflicts)} stored shapes are wrong: '{name}' is stored as {format_shape(stored)} and is "
    cause += format_shape(inferred)
    return Finding(fault="wrong_shapes", cause=cause, fix="infer them again with --fix", fixable=True)


def old_opset(context: ModelContext) -> Finding | None:
    """Compare the opset with the first one whose DequantizeLinear has an axis."""
    opset = opset_versions(context.proto).get("ai.onnx", PER_CHANNEL_OPSET)
    if opset >= PER_CHANNEL_OPSET:
        return None
    cause = f"opset {opset}: quantization with a scale for each channel needs {PER_CHANNEL_OPSET}"
    return _warning("old_opset", cause, f"export with opset {NEW_OPSET}, or convert the file with --fix")


def constant_weights(context: ModelContext) -> Finding | None:
    """Check for convolutions and matrix products whose weights are Constant nodes."""
    nodes = list(all_nodes(context.graph))
    stored = {name for node in nodes if node.op_type == "Constant" for name in node.output}
    readers = [n for n in nodes if n.op_type in WEIGHTED and len(n.input) > 1 and n.input[1] in stored]
    if not readers:
        return None
    cause = f"the weights of {node_label(readers[0])} are a Constant node, as of {len(readers)} in all: "
    cause += "dynamic quantization expects an initializer"
    return _warning("constant_weights", cause, "turn Constant nodes into initializers with --fix")


def replaceable_weights(context: ModelContext) -> Finding | None:
    """Check for initializers among the inputs, which runtimes therefore do not take for constants."""
    infos = default_inputs(context.graph, context.declared_inputs)
    if not infos:
        return None
    cause = f"{len(infos)} initializers are also inputs, such as '{infos[0].name}': a caller may replace them, so the "
    cause += "runtime neither folds nor packs them"
    fix = "export with keep_initializers_as_inputs=False, or remove them from the inputs with --fix"
    return _warning("default_inputs", cause, fix)


def local_functions(context: ModelContext) -> Finding | None:
    """Check for functions of the model's own."""
    functions = context.proto.functions
    if not functions:
        return None
    cause = f"the model has {len(functions)} functions of its own, such as '{functions[0].name}': quantizers and graph "
    cause += "passes do not look into them"
    return _warning("local_functions", cause, "replace the calls by nodes with --fix")


def constant_branch(context: ModelContext) -> Finding | None:
    """Check for If nodes with a constant condition: nothing in their branches is quantized."""
    if not if_nodes(context.proto) or not (change := _would_change(context, fold_branches)):
        return None
    cause = f"a condition never changes ({change.removeprefix('folded ')}): quantizers do not look into branches"
    return _warning("constant_branch", cause, "replace the If nodes by the branch that is taken, with --fix")


def forgotten_padding(context: ModelContext) -> Finding | None:
    """Check for zeros that pad a maximum: ONNX Runtime forgets them where all other values are negative."""
    if not (change := _would_change(context, keep_zero_padding)):
        return None
    where = change.partition("such as ")[2].partition(":")[0]
    cause = f"ONNX Runtime forgets the zeros of {where}, which pad a maximum: negative windows come out wrong"
    fix = "keep the zeros, with --fix, or switch off its graph optimizations"
    return Finding(fault="forgotten_padding", cause=cause, fix=fix, fixable=True)


def unused_nodes(context: ModelContext) -> Finding | None:
    """Check the main graph for nodes that no output depends on."""
    used = set[str]()

    def note_used(proto: onnx.ModelProto) -> str:
        change = remove_unused(proto)
        used.update(name for node in proto.graph.node for name in node.output)
        return change

    if not _would_change(context, note_used):
        return None
    unused = [node for node in context.graph.node if used.isdisjoint(node.output)]
    if not unused:
        return None
    cause = f"no output depends on {node_label(unused[0])}"
    cause += f" and {len(unused) - 1} more nodes" if len(unused) > 1 else ""
    return _warning("unused_nodes", cause, "remove what is not used with --fix")


def _warning(fault: Fault, cause: str, fix: str) -> Finding:
    return Finding(fault=fault, cause=cause, fix=fix, fixable=True, severity="warning")


def _would_change(context: ModelContext, transformation: Callable[[onnx.ModelProto], str]) -> str:
    """Return what a transformation changes in a copy without large weights; empty where it fails, too."""
    try:
        return transformation(without_weights(context.proto))
    except MemoryError:
        raise
    except Exception:  # an invalid graph, which the checker explains
        return ""
