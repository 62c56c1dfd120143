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
from gauntlet.core.facts import Facts
from gauntlet.core.frozen import Number
from gauntlet.core.kinds import kinds
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature, signature_from_graph
from gauntlet.core.unions import OneOf
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.onnx_model.model_file import read_for_editing, write_model
from gauntlet.onnx_model.operator_types import quantized_nodes
from tasks.quantize.base import Recipe
from tasks.quantize.dynamic import DynamicInt8
from tasks.quantize.float16 import Float16
from tasks.quantize.left_out import LeftOut
from tasks.quantize.static import StaticInt8

QuantizeConfig = Annotated[Recipe, OneOf("recipe", (StaticInt8, DynamicInt8, Float16))]

CORRECTION_SAMPLES = 64
"""For corrections, which installed packages bring: functions of a quantized file, its float model and these samples."""
MAX_NAMED = 16  # how many operator types a message names


def methods_of(recipes: tuple[QuantizeConfig, ...]) -> tuple[Method, ...]:
    """Return the calibration methods of the static recipes, without duplicates."""
    return tuple(dict.fromkeys(recipe.calibration_method for recipe in recipes if isinstance(recipe, StaticInt8)))


class QuantizeFacts(Facts):
    """How the recipe changed the model."""

    nodes_before: int
    nodes_after: int
    size_bytes: int
    size_ratio: float = Field(description="size before divided by size after")
    calibration_images: int
    left_out: dict[str, str] = Field({}, description="nodes in float because the quantizer cannot take them -> reason")
    bias_gain_db: Number = Field(
        0.0, description="what corrected biases bring in signal to noise, on calibration samples; 0: not corrected"
    )
    nothing_to_gain: str = Field("", description="why nothing is quantized; empty if something is")


def quantize(
    config: QuantizeConfig,
    workspace: Workspace,
    *,
    model: Artifact,
    prepared: Artifact | None = None,
    ranges: Artifact | None = None,
    samples: Artifact | None = None,
    files: tuple[object, ...] = (),
) -> Report[QuantizeFacts]:
    """Quantize a copy of the FP32 model; the report's artifact is `model`. Raises StageError when the quantizer fails.

    `prepared` and `ranges` are the calibration stage's artifacts, `samples` the calibration split, with which biases of
    static recipes are corrected; None without calibration. `files` are the user's files, an argument so that their
    content is part of the cache key.
    """
    before = onnx.load(workspace.path(model), load_external_data=False)
    path = workspace.folder / "model.onnx"
    known_ranges = Ranges.read(workspace.path(ranges)) if ranges else None
    source, split = (workspace.path(artifact) if artifact else None for artifact in (prepared, samples))
    try:  # a store that cannot be reached is no fault of the recipe
        left_out, gain_db = config.quantize(workspace.path(model), source, known_ranges, path), 0.0
        if source and split and isinstance(config, StaticInt8):
            first = read_split(split).take(slice(0, CORRECTION_SAMPLES))
            gain_db = sum(correct(path, source, first) for correct in kinds("correction").values())
    except Exception as error:
        raise StageError(f"{config.name}: {error}") from error
    after = read_for_editing(path)
    if (interface := _interface(after)) != (expected := _interface(before)):
        raise StageError(f"the recipe changes inputs and outputs from {expected} to {interface}")
    Signature.read(before).write(after)
    quantized = workspace.store_file(path, *write_model(after, path))
    facts = QuantizeFacts(
        nodes_before=len(before.graph.node),
        nodes_after=len(after.graph.node),
        size_bytes=quantized.size_bytes,
        size_ratio=model.size_bytes / quantized.size_bytes,
        calibration_images=known_ranges.images if known_ranges and config.kind == "static" else 0,
        left_out=dict(left_out),
        bias_gain_db=gain_db,
        nothing_to_gain=_nothing_to_gain(before, after, left_out),
    )
    return Report(facts=facts, artifacts={"model": quantized})


def _interface(model: onnx.ModelProto) -> str:
    """Return inputs and outputs in order, with their types and numbers of axes."""
    specs = signature_from_graph(model)
    values = (f"{spec.name}: {spec.dtype} of {len(spec.shape)} axes" for spec in (*specs.inputs, *specs.outputs))
    return ", ".join(values)


def _nothing_to_gain(before: onnx.ModelProto, after: onnx.ModelProto, left_out: LeftOut) -> str:
    """Return why a recipe quantizes nothing; empty where it does."""
    if _quantized_or_half_nodes(after) > _quantized_or_half_nodes(before):
        return ""
    operators = ", ".join(sorted({node.op_type for node in before.graph.node})[:MAX_NAMED])
    return "; ".join([f"nothing to quantize among {operators}", *sorted(set(left_out.values()))[:1]])


def _quantized_or_half_nodes(model: onnx.ModelProto) -> int:
    """Return the number of integer nodes, Q/DQ nodes, and nodes that read float16 weights."""
    half = {t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT16}
    return quantized_nodes(model) + sum(not half.isdisjoint(node.input) for node in model.graph.node)
