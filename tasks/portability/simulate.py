"""A quantised model, run with the kernels of another processor.

ONNX Runtime's own optimised graph says which nodes became integer kernels. It is cut there: the kernels are computed in
numpy, everything between them by the runtime.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import helper, numpy_helper

from tasks.portability.kernels import UNKNOWN, Array, Kernel, kernels
from tasks.portability.saturation import Loss
from tasks.runtime.session import open_session

Arrays = dict[str, Array]


class Network:
    """The model, cut at its kernels."""

    def __init__(self, model: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "optimised.onnx"
            # The last level only chooses layouts; which nodes are integer is decided before.
            open_session(model, level="extended", save_to=path)
            self.proto = onnx.load(path)
        graph = self.proto.graph
        self.kernels = kernels(graph)
        self.unknown = sorted({node.op_type for node in graph.node if node.op_type in UNKNOWN})
        self.outputs = [output.name for output in graph.output]
        self._stored = {tensor.name: tensor for tensor in graph.initializer}
        self._steps = self._cut()

    def run(self, inputs: Mapping[str, Array], *, saturating: bool) -> tuple[Arrays, dict[str, Loss]]:
        """Run one call; return the outputs by name, and by kernel what saturated."""
        values, losses = dict(inputs), {}
        for step, needed in self._steps:
            if isinstance(step, Kernel):
                given = [self._value(name, values) for name in step.node.input]
                made, losses[step.name] = step.run(given, saturating=saturating)
                values[step.node.output[0]] = made
            else:
                values |= step.run(values)
            values = {name: value for name, value in values.items() if name in needed}
        return {name: values[name] for name in self.outputs}, losses

    def _value(self, name: str, values: Arrays) -> Array | None:
        if name in self._stored:
            return numpy_helper.to_array(self._stored[name])
        return values[name] if name else None

    def _cut(self) -> list[tuple["Kernel | Segment", frozenset[str]]]:
        """Return kernels and the segments between them, each with the names of the values that are needed after it."""
        steps: list[tuple[Kernel | Segment, frozenset[str]]] = []
        needed = frozenset(self.outputs)
        for part in reversed(list(self._parts())):
            step = part if isinstance(part, Kernel) else Segment(self.proto, part, needed)
            steps.append((step, needed))
            needed |= frozenset(step.inputs)
        return steps[::-1]

    def _parts(self) -> Iterator[Kernel | list[onnx.NodeProto]]:
        nodes, start = list(self.proto.graph.node), 0
        for place, kernel in self.kernels.items():
            if start < place:
                yield nodes[start:place]
            yield kernel
            start = place + 1
        if start < len(nodes):
            yield nodes[start:]


class Segment:
    """Some nodes that follow one another, as a model of their own."""

    def __init__(self, proto: onnx.ModelProto, nodes: list[onnx.NodeProto], needed: frozenset[str]) -> None:
        stored = {tensor.name: tensor for tensor in proto.graph.initializer}
        used, made = _free(nodes), {name for node in nodes for name in node.output}
        self.inputs = sorted(used - stored.keys())
        self.outputs = sorted(made & needed)
        self._session: Any = None
        constants = [stored[name] for name in sorted(used & stored.keys())]
        graph = onnx.GraphProto(name="segment", node=nodes, initializer=constants)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in self.outputs)
        self._proto = onnx.ModelProto(
            ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions, graph=graph
        )

    def run(self, values: Mapping[str, Array]) -> Arrays:
        """Return what later steps need of the segment's values."""
        if self._session is None:
            self._session = self._opened(values)
        feed = {name: values[name] for name in self.inputs}
        return dict(zip(self.outputs, self._session.run(self.outputs, feed), strict=True))

    def _opened(self, values: Mapping[str, Array]) -> Any:
        for name in self.inputs:
            kind = helper.np_dtype_to_tensor_dtype(values[name].dtype)
            self._proto.graph.input.append(helper.make_tensor_value_info(name, kind, None))
        return open_session(self._proto.SerializeToString(), level="off")


def _free(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """Return the names that nodes, and the graphs inside them, use and do not make."""
    used, made = set(), {""}
    for node in nodes:
        used.update(node.input)
        made.update(node.output)
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                own = {v.name for v in body.input} | {t.name for t in body.initializer}
                used |= (
                    (_free(body.node) | {v.name for v in body.output})
                    - own
                    - {name for inner in body.node for name in inner.output}
                )
    return used - made
