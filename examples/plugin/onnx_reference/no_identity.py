"""The pass: it rewrites a model in memory, and the pipeline proves that the outputs stay the same."""

from typing import Literal

import onnx

from tasks.optimize.in_memory_pass import InMemoryPass


class NoIdentity(InMemoryPass):
    """Remove Identity nodes whose result no output of the graph bears."""

    kind: Literal["no-identity"] = "no-identity"

    def transform(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """Let the readers of each such node read what it reads."""
        outputs = {value.name for value in proto.graph.output}
        needless = [n for n in proto.graph.node if n.op_type == "Identity" and n.output[0] not in outputs]
        sources: dict[str, str] = {}
        for node in needless:
            sources[node.output[0]] = sources.get(node.input[0], node.input[0])
            proto.graph.node.remove(node)
        for node in proto.graph.node:
            node.input[:] = [sources.get(name, name) for name in node.input]
        return proto
