"""A quantised model, run with the kernels of another processor.

ONNX Runtime's own optimised graph says which nodes became integer kernels. It is cut behind those that could saturate:
the runtime computes every part, with exact sums, and numpy what saturation changes in the kernel at its end.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
from onnx import helper, numpy_helper

from tasks.portability.kernels import UNKNOWN, Array, Kernel, kernels
from tasks.portability.saturation import Loss
from tasks.runtime.processor import EXACT_KERNELS, Processor, this_processor
from tasks.runtime.session import open_session

Arrays = dict[str, Array]

AS_ON_X86 = {"session.qdqisint8allowed": "0"}
"""There the runtime makes signed activations unsigned; Arm's default leaves them, and its kernels do not saturate."""

QUIET = {"session.intra_op.allow_spinning": "0"}
"""There are as many sessions as parts, and each runs for a moment: their threads must not wait awake."""


@dataclass(frozen=True)
class Answers:
    """The outputs by name with exact sums and with saturating ones, and by kernel what saturated."""

    exact: Arrays
    saturating: Arrays
    losses: dict[str, Loss]


class Network:
    """The model, cut behind the kernels that could saturate.

    Args:
        model: an ONNX file.
        processor: where this runs; by default this machine's.
    """

    def __init__(self, model: Path, processor: Processor | None = None) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "optimised.onnx"
            # The last level only chooses layouts; which nodes are integer is decided before.
            self.session = open_session(model, level="extended", save_to=path, settings=AS_ON_X86)
            self.proto = onnx.load(path)
        graph = self.proto.graph
        self.kernels = kernels(graph)
        self.unknown = sorted({node.op_type for node in graph.node if node.op_type in UNKNOWN})
        self.outputs = [output.name for output in graph.output]
        self._stored = {tensor.name: tensor for tensor in graph.initializer}
        self._saturates = (processor or this_processor()).saturates

    @cached_property
    def _parts(self) -> list[tuple["Part", frozenset[str]]]:
        """The parts, each with the names of the values that are needed after it."""
        parts: list[tuple[Part, frozenset[str]]] = []
        needed = frozenset(self.outputs)
        for nodes, kernel in reversed(list(self._cut())):
            part = Part(self.proto, nodes, kernel, needed, exact=self._saturates)
            parts.append((part, needed))
            needed |= frozenset(part.inputs)
        return parts[::-1]

    def _cut(self) -> Iterator[tuple[list[onnx.NodeProto], Kernel | None]]:
        nodes, start = list(self.proto.graph.node), 0
        for place, kernel in self.kernels.items():
            if kernel.can_saturate:
                yield nodes[start : place + 1], kernel
                start = place + 1
        if start < len(nodes):
            yield nodes[start:], None

    def run(self, inputs: Mapping[str, Array]) -> Answers:
        """Run one call with both kinds of sums. Until something saturates, both are the same and run once."""
        exact, saturating, losses = dict(inputs), dict(inputs), dict[str, Loss]()
        for part, needed in self._parts:
            same = all(saturating[name] is exact[name] for name in part.inputs)
            made = part.run(exact)
            exact |= made
            saturating |= made if same else part.run(saturating)
            if part.kernel is not None:
                output, given = part.kernel.node.output[0], [self._value(n, saturating) for n in part.kernel.node.input]
                saturating[output], losses[part.kernel.name] = part.kernel.saturated(given, saturating[output])
            exact, saturating = ({n: v for n, v in side.items() if n in needed} for side in (exact, saturating))
        return Answers({n: exact[n] for n in self.outputs}, {n: saturating[n] for n in self.outputs}, losses)

    def _value(self, name: str, values: Arrays) -> Array | None:
        if name in self._stored:
            return numpy_helper.to_array(self._stored[name])
        return values[name] if name else None


class Part:
    """Some nodes that follow one another, as a model of their own; the last one is a kernel that could saturate.

    Behind the last such kernel is a part without one. `exact` is for a processor that would saturate.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        nodes: list[onnx.NodeProto],
        kernel: Kernel | None,
        needed: frozenset[str],
        *,
        exact: bool,
    ) -> None:
        stored = {tensor.name: tensor for tensor in proto.graph.initializer}
        used, made = _free(nodes), {name for node in nodes for name in node.output}
        read = set(kernel.node.input) if kernel else set()
        self.kernel, self._exact = kernel, exact
        self.inputs = sorted(used - stored.keys())
        self.outputs = sorted(made & (needed | read))
        self._session: Any = None
        constants = [stored[name] for name in sorted(used & stored.keys())]
        graph = onnx.GraphProto(name="part", node=nodes, initializer=constants)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in self.outputs)
        self._proto = onnx.ModelProto(
            ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions, graph=graph
        )

    def run(self, values: Mapping[str, Array]) -> Arrays:
        """Return what the kernel read, and what later parts need of this one's values, with exact sums."""
        if self._session is None:
            self._session = self._opened(values)
        feed = {name: values[name] for name in self.inputs}
        return dict(zip(self.outputs, self._session.run(self.outputs, feed), strict=True))

    def _opened(self, values: Mapping[str, Array]) -> Any:
        for name in self.inputs:
            kind = helper.np_dtype_to_tensor_dtype(values[name].dtype)
            self._proto.graph.input.append(helper.make_tensor_value_info(name, kind, None))
        told = self._proto.SerializeToString()
        if self._exact:  # the optimiser is what changes kernels into exact ones
            return open_session(told, level="extended", settings=QUIET | {EXACT_KERNELS: "1"})
        return open_session(told, level="off", settings=QUIET)


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
