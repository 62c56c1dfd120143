"""Quantisation: each recipe makes one candidate, which must then prove its accuracy and its speed."""

from typing import Annotated

import onnx
from pydantic import Field

from tasks.artifact import Artifact
from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.quantize.dynamic import DynamicInt8
from tasks.quantize.static import StaticInt8
from tasks.report import Report
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
    config: QuantizeConfig, out: Workspace, *, model: Artifact, calibration: Artifact
) -> Report[QuantizeFacts]:
    """Quantise a copy of the model; the report's artifact is `model`.

    Raises:
        StageError: when the quantiser itself fails.
    """
    before = onnx.load(out.path(model))
    signature = Signature.read(before)
    path = out.folder / "model.onnx"
    try:
        images = config.write(out.path(model), out.path(calibration), signature, path)
    except Exception as error:
        raise StageError(f"{config.name}: {error}") from error
    after = onnx.load(path)
    signature.write(after)
    onnx.save(after, path)
    kept = out.keep(path)
    facts = QuantizeFacts(
        nodes_before=len(before.graph.node),
        nodes_after=len(after.graph.node),
        size_bytes=kept.size_bytes,
        size_ratio=model.size_bytes / kept.size_bytes,
        calibration_images=images,
    )
    return Report(stage="quantize", facts=facts, artifacts={"model": kept})
