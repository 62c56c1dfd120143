"""An opset that is too old for quantization with a scale for each channel."""

import onnx

from gauntlet.onnx_model.graph import opset_versions
from gauntlet.onnx_model.normalization.opset import PER_CHANNEL_OPSET, raise_opset
from gauntlet.runtime.session import supported_ir_version
from wings.inspection.library.diagnosis.context import ModelContext
from wings.inspection.library.diagnosis.findings import Finding

TARGET = 17


def find(context: ModelContext) -> Finding | None:
    """Compare the opset with the first one whose DequantizeLinear has an axis."""
    opset = opset_versions(context.proto).get("ai.onnx", PER_CHANNEL_OPSET)
    if opset >= PER_CHANNEL_OPSET:
        return None
    cause = f"opset {opset}: quantization with a scale for each channel needs {PER_CHANNEL_OPSET}"
    fix = f"export with opset {TARGET}, or convert the file with --fix"
    return Finding(fault="old_opset", cause=cause, fix=fix, fixable=True, severity="warning")


def fix(proto: onnx.ModelProto) -> str:
    """Raise the opset, in place; return what was done."""
    return f"converted {raise_opset(proto, TARGET, supported_ir_version())}"
