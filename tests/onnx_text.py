"""Models written as text, in the syntax of `onnx.parser`: `name (inputs) => (outputs) <initializers> { nodes }`.

An initializer declared without values, `<float[8,3,3,3] w>`, takes those in `weights`, or random ones that are the same
at every run; one that is not declared is stored as it is. Values of half floats cannot be written as text: the parser
takes them for bits.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

Weights = Mapping[str, npt.ArrayLike]


def model(
    text: str,
    weights: Weights | None = None,
    *,
    opset: int = 18,
    ir_version: int = 8,
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """Parse a model; `domains` are the versions of further operator sets."""
    opsets = ", ".join(f'"{name}": {version}' for name, version in ({"": opset} | dict(domains or {})).items())
    proto = parser.parse_model(f"<ir_version: {ir_version}, opset_import: [{opsets}]> {text}")
    _store_weights(proto.graph, weights or {})
    return proto


def save(path: Path, text: str) -> str:
    """Write a model; return its path."""
    onnx.save(model(text), path)
    return str(path)


def extend(proto: onnx.ModelProto, text: str, place: int | None = None, weights: Weights | None = None) -> None:
    """Add a graph's nodes, at a place or at the end, and its initializers; its outputs, if any, replace the model's.

    A text without a name, inputs and outputs begins with its initializers or its nodes.
    """
    added = parser.parse_graph(text if text.lstrip()[0] not in "<{" else f"added () => () {text}")
    _store_weights(added, weights or {})
    graph = proto.graph
    place = len(graph.node) if place is None else place
    after = list(graph.node)[place:]
    del graph.node[place:]
    graph.node.extend([*added.node, *after])
    graph.initializer.extend(added.initializer)
    if added.output:
        del graph.output[:]
        graph.output.extend(added.output)


def _store_weights(graph: onnx.GraphProto, weights: Weights) -> None:
    """Give every declared initializer its values, as bytes like those of an exporter."""
    for tensor in graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    computed = {name for node in graph.node for name in node.output}
    declared = [value for value in graph.value_info if value.name not in computed]
    undeclared = weights.keys() - {value.name for value in declared}
    if unknown := undeclared - {name for node in graph.node for name in node.input}:
        raise ValueError(f"weights that the text does not name: {', '.join(sorted(unknown))}")
    graph.initializer.extend(numpy_helper.from_array(np.asarray(weights[name]), name) for name in sorted(undeclared))
    random: dict[tuple[int, ...], np.random.Generator] = {}
    for value in declared:
        shape = tuple(axis.dim_value for axis in value.type.tensor_type.shape.dim)
        kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        draw = random.setdefault(shape, np.random.default_rng(shape)).standard_normal
        array = weights[value.name] if value.name in weights else draw(shape) / np.sqrt(np.prod(shape[1:]))
        graph.initializer.append(numpy_helper.from_array(np.asarray(array, kind).reshape(shape), value.name))
        graph.value_info.remove(value)
