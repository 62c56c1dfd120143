"""The checks that do not run the model, in a child process."""

from pathlib import Path

from gauntlet.core.frozen import Frozen
from gauntlet.diagnosis.context import read_context
from gauntlet.diagnosis.faults import (
    frozen_batch,
    invalid_file,
    leaked_constant,
    missing_shapes,
    training_mode,
    unregistered_operator,
    unsupported_version,
    wrong_layout,
)
from gauntlet.diagnosis.findings import CallerHints, Fault, Finding
from gauntlet.onnx_model.graph import opset_versions


class StaticFindings(Frozen):
    """The findings of the static checks, and facts about the file."""

    opsets: dict[str, int]
    ir_version: int
    nodes: int
    findings: tuple[Finding, ...]
    unchecked: dict[Fault, str]


def run_static_checks(path: Path, hints: CallerHints) -> StaticFindings:
    """Check for every fault that shows without running the model.

    Raises:
        ConfigError: when a file that the hints name cannot be read.
        StageError: when the model cannot be read.
    """
    context = read_context(path, hints)
    external = invalid_file.find_external(context)
    checks = (
        unsupported_version.find,
        unregistered_operator.find,
        leaked_constant.find,
        training_mode.find,
        frozen_batch.find,
        wrong_layout.find,
    )
    findings = [finding for check in checks if (finding := check(context)) is not None]
    if external is not None:
        findings.insert(0, external)
    unchecked: dict[Fault, str] = {}
    hiding = {"external_data", "unregistered_operator"} | ({"too_new"} if _unknown_to_onnx(findings) else set())
    if not hiding & {finding.fault for finding in findings}:  # ONNX's checker would only repeat these
        invalid = invalid_file.find_invalid(context)
        findings = [invalid, *findings] if invalid else findings
    if not any(finding.fault == "invalid_model" for finding in findings):
        missing = missing_shapes.find(context)
        findings += [missing] if missing else []
    else:
        unchecked["missing_shapes"] = "the graph is invalid"
    reason = wrong_layout.unchecked(context)
    if reason:
        unchecked["wrong_layout"] = reason
    return StaticFindings(
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


def _unknown_to_onnx(findings: list[Finding]) -> bool:
    return any(finding.fault == "too_new" and not finding.fixable for finding in findings)
