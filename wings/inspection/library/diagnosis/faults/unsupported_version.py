"""Opset or IR version newer than the installed runtime supports."""

import onnx
import onnx.defs
import onnx.version_converter
import onnxruntime as ort

from gauntlet.core.errors import StageError
from gauntlet.onnx_model.graph import all_nodes, opset_versions, replace_model
from gauntlet.runtime.session import supported_ir_version, supported_opset
from wings.inspection.library.diagnosis.context import ModelContext
from wings.inspection.library.diagnosis.findings import Finding


def find(context: ModelContext) -> Finding | None:
    """Check the file's versions against the runtime's."""
    opset, ir = opset_versions(context.proto).get("ai.onnx", 1), context.proto.ir_version
    above = [f"opset {opset} (supported: {supported_opset()})"] if opset > supported_opset() else []
    above += [f"IR version {ir} (supported: {supported_ir_version()})"] if ir > supported_ir_version() else []
    if not above:
        return None
    newest = onnx.defs.onnx_opset_version()
    known = opset <= newest and ir <= onnx.IR_VERSION
    fix = f"export with opset {supported_opset()} or lower, update ONNX Runtime, or convert the file with --fix"
    if not known:
        fix = (
            f"update ONNX and ONNX Runtime: the installed ONNX supports opset {newest} and IR version {onnx.IR_VERSION}"
        )
    cause = f"too new for ONNX Runtime {ort.__version__}: {' and '.join(above)}"
    return Finding(fault="too_new", cause=cause, fix=fix, fixable=known)


def fix(proto: onnx.ModelProto) -> str:
    """Convert to the newest supported versions, in place; `StageError` when an operator has no older form."""
    was = opset_versions(proto).get("ai.onnx", 1), proto.ir_version
    target = min(was[0], supported_opset())
    if target < was[0]:
        if changed := _changed_since(proto, target):
            try:
                replace_model(proto, onnx.version_converter.convert_version(proto, target))
            except Exception as error:  # the converter raises RuntimeError, ValueError and its own
                raise StageError(f"cannot convert {', '.join(changed[:3])} to opset {target}") from error
        else:  # every operator has the same definition in both: only the number changes
            next(o for o in proto.opset_import if o.domain in ("", "ai.onnx")).version = target
    proto.ir_version = min(was[1], supported_ir_version())
    done = [f"opset {was[0]} to {target}"] if target < was[0] else []
    done += [f"IR version {was[1]} to {proto.ir_version}"] if proto.ir_version < was[1] else []
    return f"converted {' and '.join(done)}"


def _changed_since(proto: onnx.ModelProto, target: int) -> list[str]:
    """Return the operators whose definition is newer than the target opset."""
    version = opset_versions(proto)["ai.onnx"]
    graphs = (proto.graph, *proto.functions)
    kinds = {n.op_type for g in graphs for n in all_nodes(g) if n.domain in ("", "ai.onnx")}
    own = {f.name for f in proto.functions}
    return sorted(k for k in kinds - own if onnx.defs.get_schema(k, version, "").since_version > target)
