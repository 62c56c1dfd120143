"""Where does a wrong model go wrong? Compare its inner tensors with what the source's modules computed."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import onnx

from tasks.data.dataset import Arrays
from tasks.data.golden import Golden
from tasks.runtime.inner import inner_values, made_by_nodes
from tasks.statistics import max_rel_error

SCOPES = "pkg.torch.onnx.name_scopes"
SCOPED = re.compile(r"^/(?P<scopes>.+)/(?P<node>[^/]+)_output_\d+$")


def first_divergence(model: Path, golden: Golden, limit: float) -> str | None:
    """Return the first tensor, in the order of computation, that has a counterpart in the source and differs from it.

    The counterpart is found by the module path that the exporter writes into a tensor's name, or beside its node. A
    convolution may have swallowed the batch normalisation behind it, so its output may equal any module's of the same
    shape. The first real sample is used.

    Returns:
        A description of the tensor, its node and its error, or None when no tensor differs or none has a counterpart.
    """
    proto = onnx.load(model)
    makers = made_by_nodes(proto.graph)
    matches = {name: path for name in makers if (path := module_path(name)) in golden.trace}
    matches = matches or _by_scope(proto.graph, golden.trace)
    if not matches:
        return None
    try:
        values = inner_values(proto, matches, {name: array[:1] for name, array in golden.real.inputs.items()})
    except Exception:  # of the runtime's own, private types; a model too broken to run has told its story already
        return None
    for name, value in values.items():
        path = matches[name]
        like = [golden.trace[path], *(t for t in golden.trace.values() if t.shape == value.shape)]
        errors = [max_rel_error(value, t) for t in like if t.shape == value.shape]
        if not errors or not min(errors) <= limit:
            error = (
                f"relative error {errors[0]:.3g}" if errors else f"shape {value.shape}, not {golden.trace[path].shape}"
            )
            return f"'{name}' ({makers[name].op_type}, the source's '{path}', {error})"
    return None


def module_path(tensor: str) -> str | None:
    """Return the module path in a tensor name of PyTorch's exporter, or None.

    >>> module_path("/layer1/layer1.0/relu_1/Relu_output_0")
    'layer1.0.relu_1'
    """
    found = SCOPED.match(tensor)
    if not found:
        return None
    path = before = ""
    for scope in found["scopes"].split("/"):  # a child of a Sequential repeats the name of its parent: layer1, layer1.0
        path = path + scope.removeprefix(before) if before and scope.startswith(f"{before}.") else f"{path}.{scope}"
        before = scope
    return path.removeprefix(".")


def _by_scope(graph: onnx.GraphProto, trace: Arrays) -> dict[str, str]:
    """Return the module's path for each tensor that is a module's output, as PyTorch's newer exporter tells it.

    Beside each node stand the modules that it is in and the call that it belongs to. A call may have become several
    nodes, of which the last one counts. A module that was called again has a trace for each call.
    """
    outputs: dict[str, dict[str, str]] = {}
    for node in graph.node:
        scopes = _scopes(node)
        if len(scopes) > 1 and node.output:
            outputs.setdefault(scopes[-2], {})[scopes[-1]] = node.output[0]
    found: dict[str, str] = {}
    for path, calls in outputs.items():
        traced = list(_traced_calls(path, trace))
        if len(traced) == len(calls):
            found |= dict(zip(calls.values(), traced, strict=True))
        elif len(traced) == 1:
            found[list(calls.values())[-1]] = path
    return {name: found[name] for node in graph.node for name in node.output if name in found}


def _scopes(node: onnx.NodeProto) -> list[str]:
    for entry in node.metadata_props:
        if entry.key == SCOPES:
            try:
                return [str(scope) for scope in ast.literal_eval(entry.value)]
            except (ValueError, SyntaxError, TypeError):  # written by somebody else
                return []
    return []


def _traced_calls(path: str, trace: Arrays) -> Iterator[str]:
    name, number = path, 0
    while name in trace:
        yield name
        number += 1
        name = f"{path}_{number}"
