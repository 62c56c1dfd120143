"""What the passes of other projects share: a function from one model in memory to another, applied to files."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import onnx
from onnx.external_data_helper import uses_external_data

from tasks.model_file import copy_model, is_large_file, read_inside, write_model
from tasks.runtime.graph import nodes

Change = Callable[[onnx.ModelProto], onnx.ModelProto]


def rewrite(change: Change, source: Path, target: Path) -> None:
    """Write what `change` makes of a model.

    Of a model that is too large for one message, it gets the graph, with the weights that lie in other files as inputs:
    most libraries cannot take more than 2 GB, and the others hold several copies. So nothing that needs the values of
    such a weight is done, and what is done is right whatever they are. The weights are never read; where source and
    target lie in one folder, both models name the same files.
    """
    if not is_large_file(source):
        write_model(change(onnx.load(source)), target)
        return
    if source.parent != target.parent:
        copy_model(source, target)
        source = target
    proto = read_inside(source)
    weights = lend(proto.graph)
    after = change(proto)
    give_back(after.graph, weights)
    write_model(after, target)


def lend(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    """Make inputs of the stored tensors that lie in other files; return them."""
    named = {value.name for value in graph.input}  # before IR version 4, stored tensors are inputs as well
    stored = [deepcopy(tensor) for tensor in graph.initializer]
    weights = [tensor for tensor in stored if uses_external_data(tensor) and tensor.name not in named]
    lent = {tensor.name for tensor in weights}
    del graph.initializer[:]
    graph.initializer.extend(tensor for tensor in stored if tensor.name not in lent)
    graph.input.extend(onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in weights)
    return weights


def give_back(graph: onnx.GraphProto, weights: list[onnx.TensorProto]) -> None:
    """Make stored tensors of these inputs again, as far as anything reads them."""
    read = {name for node in nodes(graph) for name in node.input}
    names = {tensor.name for tensor in weights}
    inputs = [deepcopy(value) for value in graph.input if value.name not in names]
    del graph.input[:]
    graph.input.extend(inputs)
    graph.initializer.extend(tensor for tensor in weights if tensor.name in read)
