"""Operators that neither the standard nor the installed runtime knows."""

import onnx
import onnx.defs

from tasks.diagnose.clues import Clues
from tasks.diagnose.finding import Finding
from tasks.runtime.graph import label, opsets
from tasks.runtime.operators import unknown_nodes


def find(clues: Clues) -> Finding | None:
    """Look for operators without a definition."""
    unknown = unknown_nodes(clues.proto)
    if not unknown:
        return None
    names = sorted({f"{n.domain or 'ai.onnx'}::{n.op_type}" for n in unknown})
    cause = f"nobody here implements {', '.join(names[:3])}{' ...' if len(names) > 3 else ''} ({label(unknown[0])})"
    fix = "register the library that implements it (SessionOptions.register_custom_ops_library), or export without it"
    later = _introduced(unknown[0])
    version = opsets(clues.proto).get("ai.onnx", 1)
    if later and later > version:
        cause += f": {unknown[0].op_type} exists from opset {later} on, and the model declares {version}"
        fix = f"export with opset {later} or higher"
    return Finding(fault="unregistered_operator", cause=cause, fix=fix, fixable=False)


def without_kernel(refusal: str) -> Finding:
    """Return the finding for an operator that the runtime knows and cannot compute."""
    return Finding(
        fault="unregistered_operator",
        cause=f"the CPU has no kernel for it: {refusal}",
        fix="use a provider that has the kernel, or export the node in float32",
        fixable=False,
    )


def _introduced(node: onnx.NodeProto) -> int | None:
    """Return the first opset that has the standard's operator of this name."""
    if node.domain not in ("", "ai.onnx"):
        return None
    schemas = onnx.defs.get_all_schemas_with_history()
    return min((s.since_version for s in schemas if s.name == node.op_type and not s.domain), default=None)
