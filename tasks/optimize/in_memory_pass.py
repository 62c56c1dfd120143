"""Passes of third-party libraries, which transform models in memory."""

from abc import ABC, abstractmethod
from copy import deepcopy
from pathlib import Path
from typing import ClassVar

import onnx
from onnx.external_data_helper import uses_external_data

from gauntlet.onnx_model.graph import all_nodes
from gauntlet.onnx_model.model_file import copy_model, is_large_file, read_graph_with_local_data, write_model
from tasks.optimize.base import Pass


class InMemoryPass(Pass, ABC):
    """A pass that transforms a model in memory."""

    kind: str
    if_unchanged: ClassVar[str] = ""
    """Why the pass leaves a graph as it is, where that is known."""

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.kind

    @abstractmethod
    def transform(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """Return the transformed model; the argument may change."""

    def apply(self, model: Path, destination: Path) -> None:
        """Write the transformed model.

        If the model is too large for one protobuf message, external weights become inputs for the transformation: most
        libraries cannot take more than 2 GB, and the others hold several copies. So a transformation cannot depend on
        the values of these weights, and they are never read. When model and destination are in one folder, both refer
        to the same weight files.
        """
        if not is_large_file(model):
            write_model(self.transform(onnx.load(model)), destination)
            return
        if model.parent != destination.parent:
            copy_model(model, destination)
            model = destination
        proto = read_graph_with_local_data(model)
        weights = weights_to_inputs(proto.graph)
        after = self.transform(proto)
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
