"""Zeros that pad a maximum: ONNX Runtime forgets them where all other values are negative."""

from gauntlet.onnx_model.normalization.shapes import keep_zero_padding
from wings.inspection.library.diagnosis.context import ModelContext
from wings.inspection.library.diagnosis.faults.trial import would_change
from wings.inspection.library.diagnosis.findings import Finding


def find(context: ModelContext) -> Finding | None:
    """Check for a Pad with zeros before a MaxPool."""
    if not (change := would_change(context, keep_zero_padding)):
        return None
    where = change.partition("such as ")[2].partition(":")[0]
    cause = f"ONNX Runtime forgets the zeros of {where}, which pad a maximum: negative windows come out wrong"
    fix = "keep the zeros, with --fix, or switch off its graph optimizations"
    return Finding(fault="forgotten_padding", cause=cause, fix=fix, fixable=True)
