"""Quantisation: each recipe makes one candidate, which must then prove its accuracy and its speed."""

from typing import Annotated

import onnx
from pydantic import Field

from tasks.artifact import Artifact
from tasks.data.read import read_split
from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.model_file import write_model
from tasks.quantize.dynamic import DynamicInt8
from tasks.quantize.static import StaticInt8
from tasks.report import Check, Report
from tasks.runtime.libraries import in_sessions_of_others
from tasks.runtime.macs import quantized_nodes
from tasks.signature import Signature
from tasks.workspace import Workspace

QuantizeConfig = Annotated[StaticInt8 | DynamicInt8, Field(discriminator="kind")]


class QuantizeFacts(Frozen):
    """What the recipe did to the model."""

    nodes_before: int
    nodes_after: int
    size_bytes: int
    size_ratio: float = Field(description="size before over size after")
    calibration_images: int


def quantize(
    config: QuantizeConfig, out: Workspace, *, model: Artifact, calibration: Artifact | None
) -> Report[QuantizeFacts]:
    """Quantise a copy of the model; the report's artifact is `model`.

    Raises:
        StageError: when the quantiser itself fails.
    """
    before = onnx.load(out.path(model), load_external_data=False)
    signature = Signature.read(before)
    path = out.folder / "model.onnx"
    samples = None if calibration is None else read_split(out.path(calibration))
    try:
        with in_sessions_of_others():  # the calibration opens one
            images = config.write(out.path(model), samples, path)
    except Exception as error:
        raise StageError(f"{config.name}: {error}") from error
    after = onnx.load(path)
    signature.write(after)
    kept = out.keep(path, *write_model(after, path))
    facts = QuantizeFacts(
        nodes_before=len(before.graph.node),
        nodes_after=len(after.graph.node),
        size_bytes=kept.size_bytes,
        size_ratio=model.size_bytes / kept.size_bytes,
        calibration_images=images,
    )
    operators = sorted({node.op_type for node in before.graph.node})
    more = quantized_nodes(after) - quantized_nodes(before)
    check = Check(
        name="quantize.quantized_nodes",
        value=more,
        op=">",
        limit=0,
        unit="nodes",
        detail="" if more > 0 else f"{config.name} finds nothing to quantise among {', '.join(operators[:16])}",
        remedy="" if more > 0 else "leave the recipe out: this model has no part that it can shrink",
    )
    return Report(stage="quantize", facts=facts, checks=(check,), artifacts={"model": kept})
