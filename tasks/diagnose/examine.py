"""The first half of a diagnosis, in a child process: everything that can be seen without running the model."""

from pathlib import Path

from tasks.diagnose import batch, constants, file, layout, operators, shapes, training, versions
from tasks.diagnose.clues import read_clues
from tasks.diagnose.finding import Evidence, Fault, Finding
from tasks.frozen import Frozen
from tasks.runtime.graph import opsets


class Examination(Frozen):
    """What was seen."""

    opsets: dict[str, int]
    ir_version: int
    nodes: int
    findings: tuple[Finding, ...]
    unchecked: dict[Fault, str]


def examine(path: Path, evidence: Evidence) -> Examination:
    """Look for every fault that the file shows.

    Raises:
        ConfigError: when a file of the evidence cannot be read.
        StageError: when the model cannot.
    """
    clues = read_clues(path, evidence)
    external = file.find_external(clues)
    looks = (versions.find, operators.find, constants.find, training.find, batch.find, layout.find)
    findings = [found for look in looks if (found := look(clues)) is not None]
    if external is not None:
        findings.insert(0, external)
    unchecked: dict[Fault, str] = {}
    blinding = {"external_data", "unregistered_operator"} | ({"too_new"} if _unknown_to_onnx(findings) else set())
    if not blinding & {finding.fault for finding in findings}:  # the checker would only repeat these, in its own words
        invalid = file.find_invalid(clues)
        findings = [invalid, *findings] if invalid else findings
    if not any(finding.fault == "invalid_model" for finding in findings):
        missing = shapes.find(clues)
        findings += [missing] if missing else []
    else:
        unchecked["missing_shapes"] = "the graph is not valid"
    reason = layout.unchecked(clues)
    if reason:
        unchecked["wrong_layout"] = reason
    return Examination(
        opsets=opsets(clues.proto),
        ir_version=clues.proto.ir_version,
        nodes=len(clues.graph.node),
        findings=tuple(findings),
        unchecked=unchecked,
    )


def size_bytes(path: Path) -> int:
    """Return the size of the model with the weights beside it, where they have a usual name."""
    names = (path.name, f"{path.name}.data", f"{path.name}_data", f"{path.stem}.data")
    return sum(p.stat().st_size for p in (path.with_name(name) for name in names) if p.is_file())


def _unknown_to_onnx(findings: list[Finding]) -> bool:
    return any(finding.fault == "too_new" and not finding.fixable for finding in findings)
