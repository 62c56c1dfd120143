"""Simulate a quantized model on a processor whose kernels saturate.

ONNX Runtime's optimized graph shows which nodes became integer kernels. The graph is split after each kernel that could
saturate: ONNX Runtime computes each part with exact sums, and NumPy the saturation of the kernel at its end.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
from onnx import helper, numpy_helper

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.onnx_model.model_file import bodies
from gauntlet.runtime.processor import EXACT_KERNELS, Processor
from gauntlet.runtime.session import open_session
from wings.portability.integer_kernels import UNSUPPORTED, IntegerKernel, kernels
from wings.portability.saturation import SaturationError

AS_ON_X86 = {"session.qdqisint8allowed": "0"}  # signed activations become unsigned, unlike Arm's default
NO_SPINNING = {"session.intra_op.allow_spinning": "0"}  # each part has a session and runs briefly: no spinning threads

Nodes = list[onnx.NodeProto]


@dataclass(frozen=True)
class SimulatedOutputs:
    """Outputs by name with exact and with saturating sums, and the saturation by kernel."""

    exact: NamedArrays
    saturating: NamedArrays
    errors: dict[str, SaturationError]


class SaturationSimulator:
    """The model, split after each kernel that could saturate; `processor` runs the simulation, by default this one."""

    def __init__(self, model: Path, processor: Processor | None = None) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "optimized.onnx"
            # The highest level only changes layouts; the integer kernels are fixed at this one.
            self.session = open_session(model, level="extended", save_to=path, settings=AS_ON_X86)
            self.proto = onnx.load(path)
        graph = self.proto.graph
        self.kernels = kernels(graph)
        self.unsupported = sorted({node.op_type for node in graph.node if node.op_type in UNSUPPORTED})
        self.outputs = [output.name for output in graph.output]
        self._stored = {tensor.name: tensor for tensor in graph.initializer}
        self._saturates = (processor or Processor.current()).saturates

    @cached_property
    def _parts(self) -> list[tuple["SubgraphSession", frozenset[str]]]:
        """The parts, each with the names of the values that later parts need."""
        parts: list[tuple[SubgraphSession, frozenset[str]]] = []
        needed = frozenset(self.outputs)
        for nodes, kernel in reversed(list(self._split())):
            parts.append((SubgraphSession(self.proto, nodes, kernel, needed, exact=self._saturates), needed))
            needed |= frozenset(parts[-1][0].inputs)
        return parts[::-1]

    def _split(self) -> Iterator[tuple[Nodes, IntegerKernel | None]]:
        nodes, start = list(self.proto.graph.node), 0
        for index, kernel in self.kernels.items():
            if kernel.can_saturate:
                yield nodes[start : index + 1], kernel
                start = index + 1
        if start < len(nodes):
            yield nodes[start:], None

    def run(self, inputs: Mapping[str, Array]) -> SimulatedOutputs:
        """Run one call with both kinds of sums. Until a kernel saturates both are equal and computed once."""
        known = {n: numpy_helper.to_array(self._stored[n]) for n in self.outputs if n in self._stored} | dict(inputs)
        exact, saturating, errors = known, dict(known), dict[str, SaturationError]()
        for part, needed in self._parts:
            same = all(saturating[name] is exact[name] for name in part.inputs)
            outputs = part.run(exact)
            exact |= outputs
            saturating |= outputs if same else part.run(saturating)
            if part.kernel is not None:
                output = part.kernel.node.output[0]
                names = part.kernel.node.input
                stored = {n: numpy_helper.to_array(self._stored[n]) for n in names if n in self._stored}
                operands = [(saturating | stored).get(name) for name in names]
                saturating[output], errors[part.kernel.name] = part.kernel.saturated(operands, saturating[output])
            exact, saturating = ({n: v for n, v in side.items() if n in needed} for side in (exact, saturating))
        return SimulatedOutputs({n: exact[n] for n in self.outputs}, {n: saturating[n] for n in self.outputs}, errors)


class SubgraphSession:
    """Consecutive nodes as a model of their own; the last one is the kernel that could saturate, if there is one.

    Later parts need the tensors `needed`. `exact` selects exact kernels on a processor that saturates.
    """

    def __init__(
        self, proto: onnx.ModelProto, nodes: Nodes, kernel: IntegerKernel | None, needed: frozenset[str], *, exact: bool
    ) -> None:
        stored = {tensor.name: tensor for tensor in proto.graph.initializer}
        used, produced = _outer_values(nodes), {name for node in nodes for name in node.output if name}
        read = set(kernel.node.input) if kernel else set()
        self.kernel, self._exact = kernel, exact
        self.inputs = sorted(used - stored.keys())
        self.outputs = sorted(produced & (needed | read))
        self._session: Any = None
        constants = [stored[name] for name in sorted(used & stored.keys())]
        outputs = [onnx.ValueInfoProto(name=name) for name in self.outputs]
        graph = onnx.GraphProto(name="part", node=nodes, initializer=constants, output=outputs)
        self._proto = onnx.ModelProto(
            ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions, graph=graph
        )

    def run(self, values: Mapping[str, Array]) -> NamedArrays:
        """Return the values that the kernel reads or that later parts need, computed with exact sums."""
        if self._session is None:
            self._session = self._open(values)
        feed = {name: values[name] for name in self.inputs}
        return dict(zip(self.outputs, self._session.run(self.outputs, feed), strict=True))

    def _open(self, values: Mapping[str, Array]) -> Any:
        for name in self.inputs:
            kind = helper.np_dtype_to_tensor_dtype(values[name].dtype)
            self._proto.graph.input.append(helper.make_tensor_value_info(name, kind, None))
        model = self._proto.SerializeToString()
        if self._exact:  # the graph optimizer selects the exact kernels
            return open_session(model, level="extended", settings=NO_SPINNING | {EXACT_KERNELS: "1"})
        return open_session(model, level="off", settings=NO_SPINNING)


def _outer_values(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """Return the values that nodes and their subgraphs read but do not produce."""
    used, produced = set(), {""}
    for node in nodes:
        used.update(node.input)
        produced.update(node.output)
        for body in bodies(node):
            own = {v.name for v in body.input} | {t.name for t in body.initializer}
            own |= {name for inner in body.node for name in inner.output}
            used |= (_outer_values(body.node) | {v.name for v in body.output}) - own
    return used - produced
