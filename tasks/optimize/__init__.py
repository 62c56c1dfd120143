"""Graph passes: each makes one candidate, which must then pass the same gates as any other model."""

from typing import Annotated

import onnx
from pydantic import Field

from tasks.artifact import Artifact
from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.model_file import write_model
from tasks.optimize.onnxoptimizer import OnnxOptimizer
from tasks.optimize.onnxsim import OnnxSim
from tasks.optimize.onnxslim import OnnxSlim
from tasks.optimize.ort import OrtGraph
from tasks.report import Check, Report
from tasks.runtime.session import supported_ir_version
from tasks.signature import Signature
from tasks.workspace import Workspace

OptimizeConfig = Annotated[OrtGraph | OnnxOptimizer | OnnxSim | OnnxSlim, Field(discriminator="kind")]

LAYOUT_DOMAINS = {"com.microsoft.nchwc", "com.ms.internal.nhwc"}


class OptimizeFacts(Frozen):
    """What the pass did to the graph."""

    nodes_before: int
    nodes_after: int
    size_bytes: int
    custom_operators: dict[str, int] = Field(description="count of operators outside the standard, by domain")


def optimize(config: OptimizeConfig, out: Workspace, *, model: Artifact) -> Report[OptimizeFacts]:
    """Apply one pass to a copy of the model; the report's artifact is `model`.

    Raises:
        StageError: when the pass itself fails.
    """
    before = onnx.load(out.path(model), load_external_data=False)
    signature = Signature.read(before)
    path = out.folder / "model.onnx"
    try:
        config.apply(out.path(model), path)
        after = onnx.load(path)
    except Exception as error:
        raise StageError(f"{config.kind}: {error}") from error
    signature.write(after)
    after.ir_version = min(after.ir_version, supported_ir_version())
    companions = write_model(after, path)
    custom = [n.domain for n in after.graph.node if n.domain not in ("", "ai.onnx", "ai.onnx.ml")]
    kept = out.keep(path, *companions)
    facts = OptimizeFacts(
        nodes_before=len(before.graph.node),
        nodes_after=len(after.graph.node),
        size_bytes=kept.size_bytes,
        custom_operators={domain: custom.count(domain) for domain in sorted(set(custom))},
    )
    check = Check(
        name="optimize.layout_nodes",
        value=sum(domain in LAYOUT_DOMAINS for domain in custom),
        op="==",
        limit=0,
        unit="nodes",
        severity="warning",
        detail="this graph is laid out for the processor that made it" if set(custom) & LAYOUT_DOMAINS else "",
    )
    return Report(stage="optimize", facts=facts, checks=(check,), artifacts={"model": kept})
