"""Convolutions whose channels fill the processor's vectors: zeros are added, and read with weights of zero."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import onnx
from onnx import numpy_helper

from gauntlet.onnx_model.graph import attributes_of, int_values
from tasks.optimize.in_memory_pass import InMemoryPass
from wings.graph_passes.constant_edits import ConstantEdits

VECTOR, MIN_CHANNELS, MIN_PADDED = 4, 12, 16
"""Fewer channels than the least stay as they are; others become a multiple of `VECTOR`, of `MIN_PADDED` at least."""
SAME_CHANNELS = {
    *("Abs", "AveragePool", "BatchNormalization", "Clip", "Elu", "Gelu", "GlobalAveragePool", "GlobalMaxPool"),
    *("HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "MaxPool", "Mish", "Neg", "PRelu", "Relu", "Selu"),
    *("Sigmoid", "Softplus", "Tanh"),
}
"""Operators that keep each channel to itself, and are finite at 0."""
BINARY = {"Add", "Mul", "Sub"}
TO_ROWS = {"Flatten", "ReduceMean", "Squeeze"}


class PadChannels(InMemoryPass):
    """Fill up the channels of convolutions to multiples of 4, where only products read them.

    Kernels take channels in vectors, so that 30 take longer than 32. The filters that are added are 0, and so are the
    weights that read what they give: the outputs stay as they are.
    """

    kind: Literal["pad-channels"] = "pad-channels"

    def transform(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """Return the model with the channels filled up."""
        padding = _Padding(proto)
        for node in proto.graph.node:
            if node.op_type == "Conv" and (group := padding.group(node.output[0])) is not None:
                padding.fill(group)
        padding.drop_unread()
        return proto


@dataclass
class _Group:
    """Tensors that have the same channels, and all that changes with these."""

    channels: int
    tensors: set[str] = field(default_factory=set)
    depthwise: dict[str, onnx.NodeProto] = field(default_factory=dict)
    """By the name of what they give."""
    constants: dict[tuple[str, int, int], onnx.NodeProto] = field(default_factory=dict)
    """By a node's output, the place of its input, and the axis of the channels: the node."""


class _Blocked(Exception):  # noqa: N818 - an answer, no error
    """Something else reads or gives the channels of a group."""


class _Padding(ConstantEdits):
    def __init__(self, proto: onnx.ModelProto) -> None:
        super().__init__(proto)
        self.producer = {name: node for node in self.graph.node for name in node.output}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    def group(self, name: str) -> _Group | None:
        """Return the group of a tensor whose channels should and can be filled up, or None."""
        channels = self._channels(name)
        if channels is None or padded(channels) == channels:
            return None
        group, pending = _Group(channels), [name]
        try:
            while pending:
                name = pending.pop()
                if name not in group.tensors:
                    group.tensors.add(name)
                    pending += self._neighbors(group, name)
        except _Blocked:
            return None
        return group

    def fill(self, group: _Group) -> None:
        """Add zeros to all constants of a group."""
        added = padded(group.channels) - group.channels
        for (_, place, axis), node in group.constants.items():
            array = numpy_helper.to_array(self.constants[node.input[place]])
            inner = array.shape[axis] // group.channels  # after Flatten, values of each channel
            widths = [(0, 0)] * array.ndim
            widths[axis] = (0, added * inner)
            node.input[place] = self.store(np.pad(array, widths), node.input[place])
        for node in group.depthwise.values():
            next(a for a in node.attribute if a.name == "group").i += added
        for value in [value for value in self.graph.value_info if value.name in group.tensors]:
            self.graph.value_info.remove(value)
        for name in group.tensors:
            first, _, *others = self.shapes[name]
            self.shapes[name] = (first, padded(group.channels), *others)

    def _neighbors(self, group: _Group, name: str) -> Iterator[str]:
        """Yield the tensors that have the channels of another one; `_Blocked` where they cannot be filled up."""
        producer, readers = self.producer.get(name), self.readers.get(name, [])
        if producer is None or len(readers) != self.uses[name] or self._channels(name) != group.channels:
            raise _Blocked  # an input, an output, or read in the body of a loop
        if producer.op_type == "Conv":
            yield from self._written(group, producer)
        else:
            yield from self._kept(group, producer)
        for reader in readers:
            if reader.op_type == "Conv":
                yield from self._read(group, reader, name)
            elif reader.op_type in TO_ROWS:
                self._rows(group, reader)
            else:
                yield from self._kept(group, reader)
                yield reader.output[0]

    def _written(self, group: _Group, node: onnx.NodeProto) -> Iterator[str]:
        """Yield what a convolution whose outputs are filled up reads with the same channels."""
        if attributes_of(node).get("group", 1) != 1:
            yield from self._depthwise(group, node)
        for place in [1, 2][: len(node.input) - 1]:
            self._pad(group, node, place, 0)

    def _read(self, group: _Group, node: onnx.NodeProto, name: str) -> Iterator[str]:
        if [*node.input].count(name) != 1 or node.input[0] != name:
            raise _Blocked
        if attributes_of(node).get("group", 1) != 1:
            yield from self._depthwise(group, node)
        else:
            self._pad(group, node, 1, 1)

    def _depthwise(self, group: _Group, node: onnx.NodeProto) -> Iterator[str]:
        weights = self.array(node.input[1])
        if weights is None or not weights.shape[0] == group.channels == attributes_of(node)["group"]:
            raise _Blocked
        group.depthwise[node.output[0]] = node
        yield from (node.input[0], node.output[0])

    def _kept(self, group: _Group, node: onnx.NodeProto) -> Iterator[str]:
        """Yield the inputs of a node that keeps each channel to itself."""
        if len(node.output) > 1 or node.domain or node.op_type not in SAME_CHANNELS | BINARY:
            raise _Blocked
        rank = len(self.shapes.get(node.output[0], ()))
        for place, name in enumerate(node.input):
            shape = self.shapes.get(name)
            if node.op_type == "BatchNormalization" and place:
                self._pad(group, node, place, 0)
            elif not name or (node.op_type == "Clip" and place):
                continue
            elif shape is None:
                raise _Blocked
            elif len(shape) < rank - 1 or shape[len(shape) - rank + 1] == 1:  # the same for all channels
                continue
            elif name in self.constants:
                self._pad(group, node, place, len(shape) - rank + 1)
            elif len(shape) == rank:
                yield name
            else:
                raise _Blocked

    def _rows(self, group: _Group, node: onnx.NodeProto) -> None:
        """Require that only products read the rows that a node makes of the channels."""
        attributes, name = attributes_of(node), node.output[0]
        axes = attributes.get("axes") or int_values(self.constants.get([*node.input, ""][1]))
        whole = attributes.get("axis", 1) == 1 if node.op_type == "Flatten" else bool(axes) and min(axes) > 1
        readers = self.readers.get(name, [])
        if not whole or len(self.shapes.get(name, ())) != 2 or len(readers) != self.uses[name]:
            raise _Blocked
        for reader in readers:
            options = attributes_of(reader)
            if reader.op_type not in ("Gemm", "MatMul") or reader.input[0] != name or options.get("transA"):
                raise _Blocked
            self._pad(group, reader, 1, int(options.get("transB", 0)))
        group.tensors.add(name)

    def _pad(self, group: _Group, node: onnx.NodeProto, place: int, axis: int) -> None:
        array = self.array(node.input[place])
        if array is None or array.ndim <= axis or array.shape[axis] % group.channels:
            raise _Blocked
        group.constants[node.output[0], place, axis] = node

    def _channels(self, name: str) -> int | None:
        shape = self.shapes.get(name, ())
        return shape[1] if len(shape) > 2 and isinstance(shape[1], int) else None


def padded(channels: int) -> int:
    """Return how many channels take the least time, of so many or a few more."""
    return channels if channels < MIN_CHANNELS else max(MIN_PADDED, -(-channels // VECTOR) * VECTOR)
