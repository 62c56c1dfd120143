"""The engine: what a worker process loads to run the target."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
from onnx.reference import ReferenceEvaluator

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.runtime.engines.base import Engine, TensorInfo


class ReferenceEngine(Engine):
    """A model that ONNX's evaluator computes, node by node."""

    def __init__(self, model: Path, threads: int, options: dict[str, Any]) -> None:
        self.evaluator = ReferenceEvaluator(str(model))
        self.runtime = f"onnx {onnx.__version__}"
        self.graph = onnx.load(model, load_external_data=False).graph
        weights = {tensor.name for tensor in self.graph.initializer}
        self.inputs = [_info(value) for value in self.graph.input if value.name not in weights]
        self.outputs = [_info(value) for value in self.graph.output]

    def bind(self, feed: NamedArrays) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
        """Return the call; its results are arrays already."""
        return lambda: self.evaluator.run(None, feed), list

    def placement(self, feed: NamedArrays) -> dict[str, Any]:
        """Return the nodes, all on the CPU."""
        return {"asked": "cpu", "nodes": {"cpu": [[node.name, node.op_type] for node in self.graph.node]}}


def _info(value: onnx.ValueInfoProto) -> TensorInfo:
    tensor = value.type.tensor_type
    name = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    shape = [axis.dim_param or axis.dim_value for axis in tensor.shape.dim]
    return TensorInfo(value.name, f"tensor({name})", shape)


load_engine = ReferenceEngine
