"""Localize a numerical difference: compare intermediate tensors with the outputs of the framework model's modules."""

import ast
import re
from collections.abc import Iterator
from itertools import count, takewhile
from pathlib import Path

import onnx

from gauntlet.core.arrays import NamedArrays
from gauntlet.datasets.golden import Golden
from gauntlet.metrics.error_metrics import max_normalized_error
from gauntlet.runtime.subgraph import intermediate_values, producers

SCOPES = "pkg.torch.onnx.name_scopes"
SCOPED = re.compile(r"^/(?P<scopes>.+)/(?P<node>[^/]+)_output_\d+$")


def first_divergence(model: Path, golden: Golden, limit: float) -> str | None:
    """Return the first tensor, in execution order, that differs from its counterpart in the framework model, or None.

    A counterpart is found by the module path that the exporter writes into a tensor's name or its node's metadata. A
    batch normalization may be fused into the convolution before it, so an output may equal that of any module with the
    same shape. Uses the first real sample.
    """
    proto = onnx.load(model)
    nodes = producers(proto.graph)
    matches = {name: path for name in nodes if (path := module_path(name)) in golden.module_outputs}
    matches = matches or _by_scope(proto.graph, golden.module_outputs)
    if not matches:
        return None
    try:
        values = intermediate_values(proto, matches, {name: array[:1] for name, array in golden.real.inputs.items()})
    except Exception:  # ONNX Runtime's own types; other checks report a model that does not run
        return None
    for name, value in values.items():
        own = golden.module_outputs[matches[name]]
        errors = [
            max_normalized_error(value, t) for t in (own, *golden.module_outputs.values()) if t.shape == value.shape
        ]
        if not errors or not min(errors) <= limit:
            error = f"relative error {min(errors):.3g}" if errors else f"shape {value.shape}, not {own.shape}"
            return f"'{name}' ({nodes[name].op_type}, module '{matches[name]}', {error})"
    return None


def module_path(tensor: str) -> str | None:
    """Return the module path in a tensor name of PyTorch's TorchScript exporter, or None.

    >>> module_path("/layer1/layer1.0/relu_1/Relu_output_0")
    'layer1.0.relu_1'
    """
    if not (match := SCOPED.match(tensor)):
        return None
    path = parent = ""
    for scope in match["scopes"].split("/"):  # a child of a Sequential repeats the name of its parent: layer1, layer1.0
        path = path + scope.removeprefix(parent) if parent and scope.startswith(f"{parent}.") else f"{path}.{scope}"
        parent = scope
    return path.removeprefix(".")


def _by_scope(graph: onnx.GraphProto, trace: NamedArrays) -> dict[str, str]:
    """Return the module path of each tensor that is a module's output, from the metadata of PyTorch's dynamo exporter.

    A node's metadata lists the modules around it and the call that it belongs to. Of a call that became several nodes,
    the last one counts. A module that is called several times has one recorded output for each call.
    """
    outputs: dict[str, dict[str, str]] = {}
    for node in graph.node:
        scopes = _scopes(node)
        if len(scopes) > 1 and node.output:
            outputs.setdefault(scopes[-2], {})[scopes[-1]] = node.output[0]
    paths: dict[str, str] = {}
    for path, calls in outputs.items():
        traced = list(_traced_calls(path, trace))
        if len(traced) == len(calls):
            paths |= dict(zip(calls.values(), traced, strict=True))
        elif len(traced) == 1:
            paths[list(calls.values())[-1]] = path
    return {name: paths[name] for node in graph.node for name in node.output if name in paths}


def _scopes(node: onnx.NodeProto) -> list[str]:
    text = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "[]")
    try:
        return [str(scope) for scope in ast.literal_eval(text)]
    except (ValueError, SyntaxError, TypeError):  # another tool's format
        return []


def _traced_calls(path: str, trace: NamedArrays) -> Iterator[str]:
    names = (f"{path}_{number}" if number else path for number in count())
    return takewhile(trace.__contains__, names)
