"""Constant factors and offsets behind a product, folded into its weights."""

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from gauntlet.onnx_model.graph import int_values, unused_name
from tasks.optimize.in_memory_pass import InMemoryPass
from wings.graph_passes.constant_edits import FLOATS, ConstantEdits

Vector = npt.NDArray[np.float64]
WEIGHT_AXES = {"Conv": 0, "Gemm": 1, "MatMul": 1}
"""Product -> the axis of its weights that is the outputs' channels; of a Gemm with transB, 0."""


class FoldAffine(InMemoryPass):
    """Fold chains of Mul, Add, Sub and Div by constants of each channel into the Conv, Gemm or MatMul before them.

    Exporters leave such chains where a batch norm follows a layer that has no fused form, such as Dense or Conv1D.
    """

    kind: Literal["fold-affine"] = "fold-affine"

    def transform(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """Return the model with all such chains folded."""
        fold = _Fold(proto)
        for product in [node for node in proto.graph.node if node.op_type in WEIGHT_AXES]:
            fold.fold(product)
        fold.drop_unread()
        return proto


class _Affine(NamedTuple):
    """A chain behind a product: `scale * y + offset`, of each channel, and its nodes."""

    scale: Vector
    offset: Vector
    nodes: dict[str, onnx.NodeProto]
    """By the name of what they read."""


class _Fold(ConstantEdits):
    def __init__(self, proto: onnx.ModelProto) -> None:
        super().__init__(proto)
        self.reader = {name: node for node in self.graph.node for name in node.input}

    def fold(self, product: onnx.NodeProto) -> None:
        """Fold what follows a product, where its weights and its bias are constants."""
        array, bias = self.array(product.input[1]), self._bias(product)
        if array is None or bias is None:
            return
        attributes = {a.name: helper.get_attribute_value(a) for a in product.attribute}
        axis = 0 if attributes.get("transB") else WEIGHT_AXES[product.op_type]
        if product.op_type != "Conv" and array.ndim != 2:
            return
        chain = self._chain(product, array.shape[axis])
        if not chain.nodes or (product.op_type == "MatMul" and [n.op_type for n in chain.nodes.values()] == ["Add"]):
            return  # an Add behind a MatMul is how it has a bias
        scale = np.expand_dims(chain.scale, tuple(i for i in range(array.ndim) if i != axis))
        product.input[1] = self.store((array * scale).astype(array.dtype), product.input[1])
        offset = (chain.scale * bias + chain.offset).astype(array.dtype)
        for name, node in chain.nodes.items():
            self._remove(name, node)
        self._set_bias(product, offset, attributes)

    def _bias(self, product: onnx.NodeProto) -> Vector | None:
        """Return a product's bias, 0 without one; None where it is no constant of each channel."""
        if product.op_type == "MatMul" or len(product.input) < 3 or not product.input[2]:
            return np.zeros(1)
        tensor = self.constants.get(product.input[2])
        array = None if tensor is None else numpy_helper.to_array(tensor)
        if array is None or array.size != max(array.shape[-1:], default=1):
            return None
        return array.ravel().astype(np.float64) * next((a.f for a in product.attribute if a.name == "beta"), 1.0)

    def _chain(self, product: onnx.NodeProto, channels: int) -> _Affine:
        """Return the longest chain behind a product, past nodes that only rearrange axes."""
        chain = _Affine(np.ones(channels), np.zeros(channels), {})
        name = product.output[0]
        shape = self.shapes.get(name)
        axis = None if shape is None else (1 if product.op_type == "Conv" else len(shape) - 1)
        while axis is not None and self.uses[name] == 1 and (node := self.reader.get(name)) is not None:
            if node.op_type in ("Identity", "Transpose", "Squeeze", "Unsqueeze"):
                axis = self._moved(node, axis) if product.op_type == "Conv" else None
            elif (step := self._step(node, name, axis, channels)) is not None:
                scale, offset = step
                chain = _Affine(scale * chain.scale, scale * chain.offset + offset, {**chain.nodes, name: node})
            else:
                break
            name = node.output[0]
        return chain

    def _moved(self, node: onnx.NodeProto, axis: int) -> int | None:
        """Return where a node puts an axis, or None where that is unknown."""
        before, after = self.shapes.get(node.input[0]), self.shapes.get(node.output[0])
        if before is None or after is None:
            return None
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "Transpose":
            return [*attributes.get("perm", [*reversed(range(len(before)))])].index(axis)
        if node.op_type == "Identity":
            return axis
        axes = attributes.get("axes") or int_values(self.constants.get([*node.input, ""][1]))
        if not axes:
            return None
        longer = before if node.op_type == "Squeeze" else after
        inserted = {axis % len(longer) for axis in axes}
        kept = [i for i in range(len(longer)) if i not in inserted]
        if node.op_type == "Unsqueeze":
            return kept[axis]
        return kept.index(axis) if axis in kept else None

    def _step(self, node: onnx.NodeProto, name: str, axis: int, channels: int) -> tuple[Vector, Vector] | None:
        """Return factor and offset of a node by a constant of each channel, or None for another node."""
        if node.op_type not in ("Mul", "Add", "Sub", "Div") or node.input[0] == node.input[1]:
            return None
        first = node.input[0] == name
        tensor, shape = self.constants.get(node.input[1 if first else 0]), self.shapes.get(name)
        if tensor is None or shape is None or tensor.data_type not in FLOATS:
            return None
        array = numpy_helper.to_array(tensor).astype(np.float64)
        padded = (1,) * (len(shape) - array.ndim) + array.shape
        if len(padded) != len(shape) or any(n != 1 for i, n in enumerate(padded) if i != axis):
            return None
        if padded[axis] not in (1, channels):
            return None
        value, zero, one = np.broadcast_to(array.ravel(), channels), np.zeros(channels), np.ones(channels)
        steps = {"Mul": (value, zero), "Add": (one, value), "Sub": (one, -value) if first else (-one, value)}
        if node.op_type == "Div":
            return (1 / value, zero) if first and value.all() else None
        return steps[node.op_type]

    def _remove(self, name: str, node: onnx.NodeProto) -> None:
        """Remove a node of a chain; what it read takes the name of what it gave."""
        self.replaced |= {*node.input} - {name}
        producer = next(other for other in self.graph.node if name in other.output)
        producer.output[[*producer.output].index(name)] = node.output[0]
        for value in [value for value in self.graph.value_info if value.name == name]:
            self.graph.value_info.remove(value)
        self.graph.node.remove(node)

    def _set_bias(self, product: onnx.NodeProto, offset: Vector, attributes: dict[str, object]) -> None:
        if product.op_type != "MatMul":
            for beta in [a for a in product.attribute if a.name == "beta"]:
                product.attribute.remove(beta)
            self.replaced |= {*product.input[2:]}
            del product.input[2:]
            product.input.append(self.store(offset, f"{product.input[1]}_bias"))
        elif offset.any():
            output = product.output[0]
            product.output[0] = unused_name(f"{output}_product", {*self.uses, *self.shapes})
            add = helper.make_node("Add", [product.output[0], self.store(offset, f"{output}_bias")], [output])
            self.graph.node.insert([*self.graph.node].index(product) + 1, add)
