"""Quantisation: each recipe makes one candidate, which must then prove its accuracy and its speed.

A recipe is a frozen configuration with a `name` and one verb:

    write(model, prepared, ranges, target, *, float_nodes=frozenset())

`prepared` and `ranges` are the calibration's; both are None where there is none, and only static recipes need them.
`float_nodes` names nodes to leave as they are.
"""

from typing import Annotated

import onnx
from pydantic import Field

from tasks.artifact import Artifact
from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.model_file import read_to_change, write_model
from tasks.quantize.dynamic import DynamicInt8
from tasks.quantize.float16 import Float16
from tasks.quantize.static import StaticInt8
from tasks.ranges import Method, Ranges
from tasks.report import Check, Report
from tasks.runtime.macs import quantized_nodes
from tasks.signature import Signature
from tasks.workspace import Workspace

QuantizeConfig = Annotated[StaticInt8 | DynamicInt8 | Float16, Field(discriminator="kind")]


def methods_of(recipes: tuple[QuantizeConfig, ...]) -> tuple[Method, ...]:
    """Return the methods whose ranges the static recipes want, each once."""
    return tuple({r.method.name: r.method for r in recipes if isinstance(r, StaticInt8)}.values())


class QuantizeFacts(Frozen):
    """What the recipe did to the model."""

    nodes_before: int
    nodes_after: int
    size_bytes: int
    size_ratio: float = Field(description="size before over size after")
    calibration_images: int


def quantize(
    config: QuantizeConfig,
    out: Workspace,
    *,
    model: Artifact,
    prepared: Artifact | None = None,
    ranges: Artifact | None = None,
) -> Report[QuantizeFacts]:
    """Quantise a copy of the model; the report's artifact is `model`.

    Args:
        config: the recipe.
        out: where to work.
        model: the FP32 model.
        prepared: the calibration's artifact of that name, where there was one.
        ranges: the calibration's artifact of that name, where there was one.

    Raises:
        StageError: when the quantiser itself fails.
    """
    before = onnx.load(out.path(model), load_external_data=False)
    signature = Signature.read(before)
    path = out.folder / "model.onnx"
    found = Ranges.read(out.path(ranges)) if ranges else None
    try:
        config.write(out.path(model), out.path(prepared) if prepared else None, found, path)
    except Exception as error:
        raise StageError(f"{config.name}: {error}") from error
    after = read_to_change(path)
    signature.write(after)
    kept = out.keep(path, *write_model(after, path))
    facts = QuantizeFacts(
        nodes_before=len(before.graph.node),
        nodes_after=len(after.graph.node),
        size_bytes=kept.size_bytes,
        size_ratio=model.size_bytes / kept.size_bytes,
        calibration_images=found.images if found and config.kind == "static" else 0,
    )
    operators = sorted({node.op_type for node in before.graph.node})
    more = _shrunk(after) - _shrunk(before)
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


def _shrunk(model: onnx.ModelProto) -> int:
    """Return the number of nodes that compute in integers or pass between these and floats, or read half floats."""
    half = {t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT16}
    return quantized_nodes(model) + sum(not half.isdisjoint(node.input) for node in model.graph.node)
