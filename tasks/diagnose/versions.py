"""Opset or IR version above what the installed runtime takes."""

import onnx
import onnx.defs
import onnx.version_converter
import onnxruntime as ort

from tasks.diagnose.clues import Clues
from tasks.diagnose.finding import Finding
from tasks.errors import StageError
from tasks.runtime.graph import nodes, opsets
from tasks.runtime.session import supported_ir_version, supported_opset


def find(clues: Clues) -> Finding | None:
    """Compare the file's versions with the runtime's."""
    opset, ir = opsets(clues.proto).get("ai.onnx", 1), clues.proto.ir_version
    above = [f"opset {opset} (it takes {supported_opset()})"] if opset > supported_opset() else []
    above += [f"IR version {ir} (it takes {supported_ir_version()})"] if ir > supported_ir_version() else []
    if not above:
        return None
    newest = onnx.defs.onnx_opset_version()
    known = opset <= newest and ir <= onnx.IR_VERSION
    convert = f"export with opset {supported_opset()} or lower, update ONNX Runtime, or let --fix convert the file"
    unknown = f"update ONNX and ONNX Runtime: the installed ONNX knows opset {newest} and IR version {onnx.IR_VERSION}"
    return Finding(
        fault="too_new",
        cause=f"above what ONNX Runtime {ort.__version__} takes: {' and '.join(above)}",
        fix=convert if known else unknown,
        fixable=known,
    )


def fix(proto: onnx.ModelProto) -> str:
    """Convert to the newest versions that the runtime takes, in place; return what was done.

    Raises:
        StageError: when an operator has no older form.
    """
    was = opsets(proto).get("ai.onnx", 1), proto.ir_version
    target = min(was[0], supported_opset())
    if target < was[0]:
        changed = _changed_since(proto, target)
        if changed:
            _convert(proto, target, changed)
        else:  # every operator means the same in both: the number alone changes
            next(o for o in proto.opset_import if o.domain in ("", "ai.onnx")).version = target
    proto.ir_version = min(was[1], supported_ir_version())
    done = [f"opset {was[0]} to {target}"] if target < was[0] else []
    done += [f"IR version {was[1]} to {proto.ir_version}"] if proto.ir_version < was[1] else []
    return f"converted {' and '.join(done)}"


def _changed_since(proto: onnx.ModelProto, target: int) -> list[str]:
    """Return the operators that have a newer definition than the target's."""
    version = opsets(proto)["ai.onnx"]
    graphs = (proto.graph, *proto.functions)
    kinds = {n.op_type for g in graphs for n in nodes(g) if n.domain in ("", "ai.onnx")}
    own = {f.name for f in proto.functions}
    return sorted(k for k in kinds - own if onnx.defs.get_schema(k, version, "").since_version > target)


def _convert(proto: onnx.ModelProto, target: int, changed: list[str]) -> None:
    kept = list(proto.metadata_props)
    try:
        converted = onnx.version_converter.convert_version(proto, target)
    except Exception as error:  # the converter raises RuntimeError, ValueError and its own
        raise StageError(f"no conversion from a newer {', '.join(changed[:3])} to opset {target} is known") from error
    del converted.metadata_props[:]
    converted.metadata_props.extend(kept)
    proto.CopyFrom(converted)
