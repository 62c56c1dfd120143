"""From the source framework to ONNX."""

from typing import Annotated

import onnx
from pydantic import Field

from tasks.artifact import Artifact
from tasks.export.torchscript import TorchScript
from tasks.frozen import Frozen
from tasks.report import Report
from tasks.runtime.session import supported_ir_version
from tasks.workspace import Workspace

ExportConfig = Annotated[TorchScript, Field(description="how the model becomes ONNX")]


class ExportFacts(Frozen):
    """What was exported."""

    exporter: str
    opset: int = Field(description="of the default domain")
    ir_version: int
    nodes: int
    size_bytes: int


def export(config: ExportConfig, out: Workspace, *, model: Artifact) -> Report[ExportFacts]:
    """Export the trained model, in evaluation mode, with its signature in `metadata_props`.

    The report's artifact is `model`.
    """
    path = out.folder / "model.onnx"
    signature = config.write(out.path(model), path)
    proto = onnx.load(path)
    signature.write(proto)
    proto.producer_name = "onnx-gauntlet"
    proto.ir_version = min(proto.ir_version, supported_ir_version())
    onnx.save(proto, path)
    kept = out.keep(path)
    facts = ExportFacts(
        exporter=config.kind,
        opset=next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0),
        ir_version=proto.ir_version,
        nodes=len(proto.graph.node),
        size_bytes=kept.size_bytes,
    )
    return Report(stage="export", facts=facts, artifacts={"model": kept})
