"""Parts that nothing uses, functions of the model, and names."""

from collections import Counter

import onnx
import onnx.inliner

from gauntlet.core.errors import StageError
from gauntlet.onnx_model.graph import all_graphs, all_nodes, replace_model
from gauntlet.onnx_model.normalization.order import run_passes


def remove_unused(proto: onnx.ModelProto) -> str:
    """Remove nodes, initializers and functions that no output depends on."""
    from onnx_ir.passes.common import RemoveUnusedFunctionsPass, RemoveUnusedNodesPass

    before = _parts(proto)
    if not run_passes(proto, RemoveUnusedNodesPass(), RemoveUnusedFunctionsPass()):  # type: ignore[no-untyped-call]
        return ""
    removed = before - _parts(proto)
    return "removed " + ", ".join(f"{count} {kind}" for kind, count in removed.items())


def _parts(proto: onnx.ModelProto) -> Counter[str]:
    graphs = list(all_graphs(proto.graph))
    return Counter(
        {
            "unused nodes": sum(len(graph.node) for graph in graphs),
            "unused initializers": sum(len(graph.initializer) for graph in graphs),
            "unused functions": len(proto.functions),
        }
    )


def make_names_unique(proto: onnx.ModelProto) -> str:
    """Give every node a name of its own, every graph one, and rename values that hide another of the same name."""
    from onnx_ir.passes.common import NameFixPass

    nameless = [graph for graph in all_graphs(proto.graph) if not graph.name]
    for graph in nameless:  # ONNX's checker refuses them, and no runtime does
        graph.name = "graph"
    unnamed, repeated = unclear_node_names(proto)
    values = _value_names(proto)
    if not run_passes(proto, NameFixPass()):
        return "named the graph" if nameless else ""
    renamed = sum((values - _value_names(proto)).values())
    counts = {"unnamed nodes": unnamed, "nodes of the same name": repeated, "values": renamed}
    return "renamed " + (", ".join(f"{count} {kind}" for kind, count in counts.items() if count) or "inner nodes")


def unclear_node_names(proto: onnx.ModelProto) -> tuple[int, int]:
    """Return how many nodes have no name, and how many have the name of an earlier node of the same graph."""
    unnamed = sum(not node.name for node in all_nodes(proto.graph))
    repeated = 0
    for graph in all_graphs(proto.graph):
        names = [node.name for node in graph.node if node.name]
        repeated += len(names) - len(set(names))
    return unnamed, repeated


def _value_names(proto: onnx.ModelProto) -> Counter[str]:
    return Counter(name for node in all_nodes(proto.graph) for name in node.output if name)


def inline_functions(proto: onnx.ModelProto) -> str:
    """Replace every call of a model-local function by the function's nodes."""
    if not proto.functions:
        return ""
    names = sorted({function.name for function in proto.functions})
    defaults = {(f.domain, f.name, f.overload): f.attribute_proto for f in proto.functions}
    for node in (node for part in (proto.graph, *proto.functions) for node in all_nodes(part)):
        given = {attribute.name for attribute in node.attribute}  # the inliner takes no default
        own = defaults.get((node.domain, node.op_type, node.overload), ())
        node.attribute.extend(default for default in own if default.name not in given)
    inlined = onnx.inliner.inline_local_functions(proto, convert_version=True)
    if inlined.functions:
        raise StageError(f"the function {inlined.functions[0].name} cannot be inlined")
    replace_model(proto, inlined)
    return f"inlined {len(names)} function{'s' if len(names) > 1 else ''}: {', '.join(names[:3])}"
