"""Multiply-accumulate operations (MACs) of nodes, from shapes alone."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Literal

import onnx
from onnx import TensorProto

from gauntlet.core.arrays import read_arrays
from gauntlet.onnx_model.graph import (
    Shape,
    all_nodes,
    attributes_of,
    constants,
    inferred_shapes,
    read_untrusted_graph,
    required_inputs,
    tensor_shape,
    without_weights,
)
from gauntlet.onnx_model.model_file import require_local_data
from gauntlet.onnx_model.operator_types import CONTROL_FLOW, FLOAT_OPS, INTEGER_OPS, quantized_nodes

COUNTED = INTEGER_OPS | FLOAT_OPS
UNCOUNTED = {"Attention", "GRU", "LSTM", "RNN", "Einsum", "MultiHeadAttention", "DeformConv"}
"""Operators whose multiplications cannot be counted from shapes alone."""
MULTIPLY = COUNTED | UNCOUNTED


def node_macs(node: onnx.NodeProto, shapes: dict[str, Shape]) -> int | None:
    """Return output values x terms summed for each; 0 for other operators, None where a shape is unknown."""
    if node.op_type in UNCOUNTED | CONTROL_FLOW:
        return None
    if node.op_type not in COUNTED:
        return 0
    if not node.output or len(node.input) < 2:
        return None
    output, left = _size(shapes.get(node.output[0])), shapes.get(node.input[0])
    if "Conv" in node.op_type:
        # Weights (outputs, inputs / groups, *kernel); a transposed convolution's (inputs, outputs / groups, *kernel).
        weights = shapes.get(node.input[3 if node.op_type == "QLinearConv" and len(node.input) > 3 else 1])
        terms = _size(weights[1:] if weights else None)
        values = _size(left) if node.op_type == "ConvTranspose" else output
        return None if values is None or terms is None else values * terms
    if not left:
        return None
    length = left[-2] if attributes_of(node).get("transA") and len(left) > 1 else left[-1]
    return output * length if output is not None and isinstance(length, int) else None


def with_batch_of_one(proto: onnx.ModelProto, samples: Mapping[str, Sequence[int]] | None = None) -> onnx.ModelProto:
    """Return the model without its weights' values, with a dynamic batch set to one sample.

    Other dynamic axes are set from `samples`, the shapes (n, ...) of arrays by input; as in
    `gauntlet.runtime.batched_inference`, a sample of an array with one axis more than its input is a whole input.
    """
    bare = without_weights(proto)
    inputs = [(i, tensor_shape(i) or (1,)) for i in required_inputs(bare.graph)]
    batch = {shape[0] for _, shape in inputs if isinstance(shape[0], str)}
    if any(not isinstance(axis, int) for _, shape in inputs for axis in (shape if samples else shape[:1])):
        del bare.graph.value_info[:]
        for output in bare.graph.output:
            output.type.tensor_type.ClearField("shape")
    for value, shape in inputs:
        dims, sample = value.type.tensor_type.shape.dim, tuple((samples or {}).get(value.name, ()))
        whole = len(sample) == len(dims) + 1
        for axis, dim in enumerate(dims):
            if isinstance(shape[axis], int):
                continue
            if not whole and (axis == 0 or dim.dim_param in batch):
                dim.dim_value = 1
            elif len(sample) == len(dims) + whole:
                dim.dim_value = sample[axis + whole]
    return bare


@dataclass(frozen=True)
class ModelMacs:
    """The arithmetic of a model file."""

    quantized: bool
    precision: Literal["f32", "f16", "bf16"]
    """The least precise float type that it multiplies with."""
    macs: dict[str, tuple[str, int | None]]
    """Node -> operator and MACs for one sample, of the nodes that multiply; None where a shape is unknown."""
    shape_nodes: frozenset[str] = frozenset()
    """Nodes that compute from shapes and constants alone; providers leave them to the CPU on purpose."""

    def shares(self, provider: str, placed: Mapping[str, Sequence[Sequence[str]]]) -> dict[str, float]:
        """Return the share of MACs of every provider that has nodes; of nodes, where nothing multiplies.

        MACs not found elsewhere count as those of `provider`, which was requested, because a compiled part of the graph
        appears as one node. NaN where the MACs of a node elsewhere are unknown. `placed` lists (name, operator) of the
        nodes by provider.
        """
        there = {name: nodes for name, nodes in placed.items() if name != provider and nodes}
        if self.macs:
            whole = sum(count or 0 for _, count in self.macs.values())
            shares = {name: sum(starmap(self._macs, nodes)) / (whole or 1) for name, nodes in there.items()}
        else:
            counts = {name: sum(n not in self.shape_nodes for n, _ in nodes) for name, nodes in placed.items()}
            shares = {name: counts[name] / (sum(counts.values()) or 1) for name in there}
        return shares | ({provider: 1 - sum(shares.values())} if placed.get(provider) else {})

    def _macs(self, name: str, kind: str) -> float:
        """Return a node's MACs, NaN where they are unknown; if the runtime renamed it, the average of its kind."""
        if name not in self.macs and kind not in MULTIPLY:
            return 0
        alike = [count for operator, count in self.macs.values() if ("Conv" in operator) == ("Conv" in kind)]
        counts = [self.macs[name][1]] if name in self.macs else alike if kind in COUNTED else []
        known = [count for count in counts if count is not None]
        return sum(known) / len(known) if known and len(known) == len(counts) else math.nan


def read_model_macs(model: Path, inputs: Path) -> ModelMacs:
    """Read a model's arithmetic for the samples of an `.npz` file: arrays (n, ...) by input.

    Raise StageError if the file is damaged, or its external data is missing or outside its folder.
    """
    proto = read_untrusted_graph(model)
    require_local_data(proto, model)
    samples = {name: array.shape for name, array in read_arrays(inputs).items()}
    try:
        shapes = inferred_shapes(with_batch_of_one(proto, samples), through_values=True)
    except Exception:  # shape inference rejects some models that the runtime accepts
        shapes = {}
    products = [node for node in all_nodes(proto.graph) if node.op_type in MULTIPLY]
    macs = {n.name or f"{n.op_type} of {next(iter(n.output), '')}": (n.op_type, node_macs(n, shapes)) for n in products}
    return ModelMacs(quantized_nodes(proto) > 0, _precision(proto.graph), macs, _shape_nodes(proto.graph))


def _precision(graph: onnx.GraphProto) -> Literal["f32", "f16", "bf16"]:
    stored = {name: tensor.data_type for name, tensor in constants(graph).items()}
    kinds = {stored.get(name) for node in all_nodes(graph) if node.op_type in MULTIPLY for name in node.input}
    return "bf16" if TensorProto.BFLOAT16 in kinds else "f16" if TensorProto.FLOAT16 in kinds else "f32"


def _shape_nodes(graph: onnx.GraphProto) -> frozenset[str]:
    known, names = {"", *(tensor.name for tensor in graph.initializer)}, set()
    for node in graph.node:
        if node.op_type in ("Shape", "Size") or known.issuperset(node.input):
            known.update(node.output)
            names.add(node.name)
    return frozenset(names - {""})


def _size(shape: Shape | None) -> int | None:
    known = [axis for axis in shape or () if isinstance(axis, int)]
    return math.prod(known) if shape is not None and len(known) == len(shape) else None
