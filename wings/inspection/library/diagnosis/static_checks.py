"""The checks that do not run the model, in a child process."""

from pathlib import Path

from gauntlet.onnx_model.graph import opset_versions
from wings.inspection.library.diagnosis.context import read_context
from wings.inspection.library.diagnosis.faults import (
    frozen_batch,
    invalid_file,
    leaked_constant,
    missing_shapes,
    shared_scale,
    training_mode,
    unnormalized,
    unregistered_operator,
    unsupported_version,
    wrong_layout,
)
from wings.inspection.library.diagnosis.findings import CallerHints, Diagnosis, Fault

CHECKS = (
    invalid_file.find_external,
    unsupported_version.find,
    unregistered_operator.find,
    leaked_constant.find,
    training_mode.find,
    frozen_batch.find,
    wrong_layout.find,
    unnormalized.unsorted_nodes,
    unnormalized.repeated_names,
    unnormalized.wrong_shapes,
    unnormalized.old_opset,
    unnormalized.constant_weights,
    unnormalized.replaceable_weights,
    unnormalized.local_functions,
    unnormalized.constant_branch,
    unnormalized.forgotten_padding,
    unnormalized.unused_nodes,
    shared_scale.find,
)


UNREADABLE = ("external_data", "unregistered_operator")
INVALID = ("unsorted_nodes", "wrong_shapes")


def run_static_checks(path: Path, hints: CallerHints) -> Diagnosis:
    """Check for every fault that shows without running the model; raises as `read_context` does."""
    context = read_context(path, hints)
    findings = [finding for check in CHECKS if (finding := check(context))]
    unchecked: dict[Fault, str] = {}
    # ONNX's checker would only repeat these.
    known = any(f.fault in UNREADABLE for f in findings)
    known |= any(f.fault == "too_new" and not f.fixable for f in findings)
    if any(f.fault in INVALID for f in findings):
        unchecked["missing_shapes"] = "the graph is invalid"
    elif not known and (invalid := invalid_file.find_invalid(context)):
        findings.insert(0, invalid)
        unchecked["missing_shapes"] = "the graph is invalid"
    elif missing := missing_shapes.find(context):
        findings.append(missing)
    if reason := wrong_layout.unchecked(context):
        unchecked["wrong_layout"] = reason
    return Diagnosis(
        model=path.name,
        size_bytes=size_bytes(path),
        opsets=opset_versions(context.proto),
        ir_version=context.proto.ir_version,
        nodes=len(context.graph.node),
        findings=tuple(findings),
        unchecked=unchecked,
    )


def size_bytes(path: Path) -> int:
    """Return the size of the model, including external weights under one of the usual file names."""
    names = (path.name, f"{path.name}.data", f"{path.name}_data", f"{path.stem}.data")
    return sum(p.stat().st_size for p in (path.with_name(name) for name in names) if p.is_file())
