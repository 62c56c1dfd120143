"""The passes of ONNX Runtime and of a user's function, and how any pass is applied."""

from pathlib import Path
from typing import Annotated, Literal

import onnx
from pydantic import Field

from gauntlet.core.errors import StageError
from gauntlet.core.unions import OneOf
from gauntlet.core.user_code import UserFunction
from gauntlet.onnx_model.model_file import read_for_editing, read_graph, write_model
from gauntlet.runtime.session import open_session, supported_ir_version
from tasks.optimize.base import Pass


class OrtGraph(Pass):
    """ONNX Runtime's graph optimizer at one level. `all` chooses layouts for this processor."""

    kind: Literal["ort"] = "ort"
    level: Literal["basic", "extended", "all"] = Field("extended", description="graph optimization level")

    @property
    def name(self) -> str:
        """The candidate's name."""
        return f"ort-{self.level}"

    @property
    def keeps_products(self) -> bool:
        """Whether recipes can quantize the products of the optimized model."""
        return self.level == "basic"

    def apply(self, model: Path, destination: Path) -> None:
        """Write the optimized model."""
        open_session(model, level=self.level, save_to=destination)


class PythonPass(UserFunction, Pass):
    """A Python function that takes an `onnx.ModelProto` and returns one; it may modify its argument."""

    kind: Literal["python"] = "python"

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.function.partition(":")[2]

    def apply(self, model: Path, destination: Path) -> None:
        """Write the function's result. Raises StageError when there is no such function or result."""
        result = self.load()(onnx.load(model))
        if not isinstance(result, onnx.ModelProto):
            raise StageError(f"{self.function} returns {type(result).__name__}; return an onnx.ModelProto")
        write_model(result, destination)


PASSES = (OrtGraph, PythonPass)
GraphPass = Annotated[Pass, OneOf("pass", PASSES)]

LAYOUT_DOMAINS = {"com.microsoft.nchwc", "com.ms.internal.nhwc"}  # of operators in a processor-specific layout


def apply_pass(graph_pass: GraphPass, model: Path, destination: Path) -> onnx.ModelProto:
    """Apply a pass to a copy and return the model written to `destination`, with the metadata of the original.

    Exceptions of the pass propagate.
    """
    graph_pass.apply(model, destination)
    before, after = read_graph(model), read_for_editing(destination)
    metadata = {entry.key: entry.value for proto in (after, before) for entry in proto.metadata_props}
    onnx.helper.set_model_props(after, metadata)
    after.ir_version = min(after.ir_version, supported_ir_version())
    write_model(after, destination)
    return after


def layout_nodes(proto: onnx.ModelProto) -> int:
    """Return the number of nodes in a processor-specific layout."""
    return sum(node.domain in LAYOUT_DOMAINS for node in proto.graph.node)
