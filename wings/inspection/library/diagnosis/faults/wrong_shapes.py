"""Stored shapes that contradict what ONNX infers: quantizers and the checker refuse such a model."""

from gauntlet.onnx_model.graph import format_shape
from gauntlet.onnx_model.normalization.shapes import conflicting_shapes
from wings.inspection.library.diagnosis.context import ModelContext
from wings.inspection.library.diagnosis.findings import Finding


def find(context: ModelContext) -> Finding | None:
    """Compare the stored shapes with inferred ones."""
    try:
        conflicts = conflicting_shapes(context.proto)
    except Exception:  # inference refuses an invalid graph, which the checker explains
        return None
    if not conflicts:
        return None
    name, (stored, inferred) = next(iter(conflicts.items()))
    cause = f"{len(conflicts)} stored shapes are wrong: '{name}' is stored as {format_shape(stored)} and is "
    cause += format_shape(inferred)
    return Finding(fault="wrong_shapes", cause=cause, fix="infer them again with --fix", fixable=True)
