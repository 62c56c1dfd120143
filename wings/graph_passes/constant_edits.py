"""Replace constants of a graph, and drop those that nothing reads any more."""

from collections import Counter
from typing import Any

import numpy.typing as npt
import onnx
from onnx import numpy_helper

from gauntlet.onnx_model.graph import Shape, all_nodes, inferred_shapes, unused_name

FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)


class ConstantEdits:
    """The constants of a graph by name, without defaults that a caller may replace (before IR version 4)."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.graph = proto.graph
        self.shapes: dict[str, Shape] = inferred_shapes(proto)
        self.constants = {tensor.name: tensor for tensor in self.graph.initializer}
        for value in self.graph.input:
            self.constants.pop(value.name, None)
        self.replaced = set[str]()
        """What the edits no longer read."""
        self.uses = Counter(name for node in all_nodes(self.graph) for name in node.input)
        self.uses.update(value.name for value in self.graph.output)

    def array(self, name: str) -> npt.NDArray[Any] | None:
        """Return a constant of floats; None for what is none."""
        tensor = self.constants.get(name)
        return None if tensor is None or tensor.data_type not in FLOATS else numpy_helper.to_array(tensor)

    def store(self, array: npt.NDArray[Any], name: str) -> str:
        """Add a constant in place of another one, and return its name."""
        self.replaced.add(name)
        fresh = unused_name(f"{name}_folded", {*self.constants, *self.uses, *self.shapes})
        self.constants[fresh] = numpy_helper.from_array(array, fresh)
        self.graph.initializer.append(self.constants[fresh])
        return fresh

    def drop_unread(self) -> None:
        """Remove what was replaced and is read nowhere else."""
        read = {name for node in all_nodes(self.graph) for name in node.input}
        for tensor in [tensor for tensor in self.graph.initializer if tensor.name in self.replaced - read]:
            self.graph.initializer.remove(tensor)
