"""Quantization: each recipe makes one candidate, whose accuracy and speed are then measured.

A recipe is a frozen configuration with a `name` and a method `quantize`. Static recipes need the calibration stage's
`prepared` model and `ranges`, which are None without calibration. `float_nodes` names nodes to keep in floating point.
One that `takes_fused_attention` leaves ONNX Runtime's own operators as they are.
"""

from typing import Annotated

import onnx
from pydantic import Field

from gauntlet.calibration.ranges import Method, Ranges
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Check, Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.onnx_model.model_file import read_for_editing, write_model
from gauntlet.onnx_model.operator_types import quantized_nodes
from tasks.quantize.dynamic import DynamicInt8
from tasks.quantize.float16 import Float16
from tasks.quantize.left_out import LeftOut
from tasks.quantize.static import StaticInt8
from tasks.quantize.weight_only import WeightOnly

QuantizeConfig = Annotated[StaticInt8 | DynamicInt8 | WeightOnly | Float16, Field(discriminator="kind")]

MAX_NAMED = 16  # how many operator types a message names


def methods_of(recipes: tuple[QuantizeConfig, ...]) -> tuple[Method, ...]:
    """Return the calibration methods of the static recipes, without duplicates."""
    return tuple(dict.fromkeys(recipe.calibration_method for recipe in recipes if isinstance(recipe, StaticInt8)))


class QuantizeFacts(Frozen):
    """How the recipe changed the model."""

    nodes_before: int
    nodes_after: int
    size_bytes: int
    size_ratio: float = Field(description="size before divided by size after")
    calibration_images: int
    left_out: dict[str, str] = Field({}, description="nodes in float because the quantizer cannot take them -> reason")


def quantize(
    config: QuantizeConfig,
    workspace: Workspace,
    *,
    model: Artifact,
    prepared: Artifact | None = None,
    ranges: Artifact | None = None,
) -> Report[QuantizeFacts]:
    """Quantize a copy of the FP32 model; the report's artifact is `model`. Raises StageError when the quantizer fails.

    `prepared` and `ranges` are the calibration stage's artifacts; None without calibration.
    """
    before = onnx.load(workspace.path(model), load_external_data=False)
    path = workspace.folder / "model.onnx"
    known_ranges = Ranges.read(workspace.path(ranges)) if ranges else None
    try:
        source = workspace.path(prepared) if prepared else None
        left_out = config.quantize(workspace.path(model), source, known_ranges, path)
    except Exception as error:
        raise StageError(f"{config.name}: {error}") from error
    after = read_for_editing(path)
    Signature.read(before).write(after)
    quantized = workspace.store_file(path, *write_model(after, path))
    facts = QuantizeFacts(
        nodes_before=len(before.graph.node),
        nodes_after=len(after.graph.node),
        size_bytes=quantized.size_bytes,
        size_ratio=model.size_bytes / quantized.size_bytes,
        calibration_images=known_ranges.images if known_ranges and config.kind == "static" else 0,
        left_out=dict(left_out),
    )
    check = _quantized_nodes_check(before, after, left_out)
    return Report(stage="quantize", facts=facts, checks=(check,), artifacts={"model": quantized})


def _quantized_nodes_check(before: onnx.ModelProto, after: onnx.ModelProto, left_out: LeftOut) -> Check:
    added = _quantized_or_half_nodes(after) - _quantized_or_half_nodes(before)
    check = Check(name="quantize.quantized_nodes", value=added, op=">", limit=0, unit="nodes")
    operators = ", ".join(sorted({node.op_type for node in before.graph.node})[:MAX_NAMED])
    reasons = "".join(f"; {reason}" for reason in sorted(set(left_out.values()))[:1])
    detail = f"nothing to quantize among {operators}{reasons}"
    return check.explained(detail, "remove the recipe: it does not apply to this model")


def _quantized_or_half_nodes(model: onnx.ModelProto) -> int:
    """Return the number of integer nodes, Q/DQ nodes, and nodes that read float16 weights."""
    half = {t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT16}
    return quantized_nodes(model) + sum(not half.isdisjoint(node.input) for node in model.graph.node)
