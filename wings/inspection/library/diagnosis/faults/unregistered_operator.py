"""Operators that neither the ONNX standard nor the installed runtime defines."""

import onnx
import onnx.defs

from gauntlet.onnx_model.graph import node_label, opset_versions
from gauntlet.runtime.operator_support import unsupported_nodes
from wings.inspection.library.diagnosis.context import ModelContext
from wings.inspection.library.diagnosis.findings import Finding


def find(context: ModelContext) -> Finding | None:
    """Check for operators without a definition."""
    unknown = unsupported_nodes(context.proto)
    if not unknown:
        return None
    names = sorted({f"{n.domain or 'ai.onnx'}::{n.op_type}" for n in unknown})
    listed = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
    cause = f"no implementation found for {listed} ({node_label(unknown[0])})"
    fix = "register the library that implements it (run with --set 'operator_libraries=[FILE]'), or export without it"
    later = _introduced(unknown[0])
    version = opset_versions(context.proto).get("ai.onnx", 1)
    if later and later > version:
        cause += f": {unknown[0].op_type} exists from opset {later}, and the model declares opset {version}"
        fix = f"export with opset {later} or higher"
    return Finding(fault="unregistered_operator", cause=cause, fix=fix, fixable=False)


def without_kernel(message: str) -> Finding:
    """Return the finding for an operator that ONNX Runtime defines but has no kernel for."""
    cause = f"the CPU provider has no kernel: {message}"
    fix = "use a provider that has the kernel, or export the node in float32"
    return Finding(fault="unregistered_operator", cause=cause, fix=fix, fixable=False)


def _introduced(node: onnx.NodeProto) -> int | None:
    """Return the first opset with a standard operator of this name, or None."""
    if node.domain not in ("", "ai.onnx"):
        return None
    schemas = onnx.defs.get_all_schemas_with_history()
    return min((s.since_version for s in schemas if s.name == node.op_type and not s.domain), default=None)
