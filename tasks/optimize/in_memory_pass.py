"""Apply a function on in-memory models to model files; the passes of third-party libraries use it."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import onnx
from onnx.external_data_helper import uses_external_data

from gauntlet.onnx_model.graph import all_nodes
from gauntlet.onnx_model.model_file import copy_model, is_large_file, read_graph_with_local_data, write_model

ModelFunction = Callable[[onnx.ModelProto], onnx.ModelProto]


def apply_in_memory(function: ModelFunction, model: Path, destination: Path) -> None:
    """Write `function(model)` to `destination`.

    Of a model too large for one protobuf message, the function gets the graph with the externally stored weights as
    inputs: most libraries cannot take more than 2 GB, and the others hold several copies. So the function does nothing
    that depends on the values of such a weight. The weights are never read; when model and destination are in one
    folder, both refer to the same weight files.
    """
    if not is_large_file(model):
        write_model(function(onnx.load(model)), destination)
        return
    if model.parent != destination.parent:
        copy_model(model, destination)
        model = destination
    proto = read_graph_with_local_data(model)
    weights = weights_to_inputs(proto.graph)
    after = function(proto)
    inputs_to_weights(after.graph, weights)
    write_model(after, destination)


def weights_to_inputs(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    """Turn initializers with external data into inputs; return the initializers."""
    inputs = {value.name for value in graph.input}  # before IR version 4, initializers are inputs as well
    stored = [deepcopy(tensor) for tensor in graph.initializer]
    weights = [tensor for tensor in stored if uses_external_data(tensor) and tensor.name not in inputs]
    moved = {tensor.name for tensor in weights}
    del graph.initializer[:]
    graph.initializer.extend(tensor for tensor in stored if tensor.name not in moved)
    graph.input.extend(onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in weights)
    return weights


def inputs_to_weights(graph: onnx.GraphProto, weights: list[onnx.TensorProto]) -> None:
    """Turn these inputs back into initializers; drop those that no node reads."""
    read = {name for node in all_nodes(graph) for name in node.input}
    names = {tensor.name for tensor in weights}
    inputs = [deepcopy(value) for value in graph.input if value.name not in names]
    del graph.input[:]
    graph.input.extend(inputs)
    graph.initializer.extend(tensor for tensor in weights if tensor.name in read)
