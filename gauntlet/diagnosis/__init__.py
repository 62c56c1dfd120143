"""Find common faults of ONNX models, explain each in one line, and fix those that are safe to fix.

This process never reads the model. Child processes do, each with a limit of time and memory, so that a file which
crashes, hangs or exhausts its reader ends in one finding or one error.
"""

import math
from pathlib import Path
from time import monotonic

from gauntlet.core.errors import ConfigError, StageError
from gauntlet.diagnosis.findings import CallerHints, Diagnosis, Fault, Finding, FixResult
from gauntlet.diagnosis.fixes import apply_fixes
from gauntlet.diagnosis.runtime_checks import RuntimeFindings, run_runtime_checks, unrun
from gauntlet.diagnosis.static_checks import StaticFindings, run_static_checks, size_bytes
from gauntlet.onnx_model.model_file import refuse_wrong_file
from gauntlet.runtime.subprocess_runner import SubprocessFailed, run_in_subprocess

TIMEOUT_S = 7.0
FIX_TIMEOUT_S = 120.0
"""For a small model; larger ones get more, see `read_limits`."""
MEMORY_BYTES = 1_500_000_000


def diagnose(path: Path, hints: CallerHints | None = None, timeout_s: float | None = None) -> Diagnosis:
    """Check a model for every fault.

    Args:
        path: the model.
        hints: what the caller knows about the model: samples, layout, constants.
        timeout_s: limit for the whole diagnosis; by default 7 s, and 1 s more for each 10 MB.

    Raises:
        ConfigError: when the file does not exist, or a file that the hints name cannot be read.
        StageError: when the file is not an ONNX model, or cannot be read within the limits.
    """
    hints = hints or CallerHints()
    refuse_wrong_file(path)
    seconds, memory = read_limits(path, timeout_s or TIMEOUT_S, fixed=timeout_s is not None)
    start = monotonic()
    try:
        checked = run_in_subprocess(run_static_checks, path, hints, timeout_s=seconds, memory_bytes=memory)
    except SubprocessFailed as error:
        raise StageError(f"{path.name}: checking the model failed: {error}") from error
    static = checked.value
    findings = list(static.findings)
    unchecked, peak = dict(static.unchecked), checked.peak_rss_bytes
    runtime = RuntimeFindings()
    blocked = next((f for f in findings if f.fault in ("external_data", "too_new", "unregistered_operator")), None)
    if blocked is not None:
        unchecked |= unrun("the model cannot be loaded")
    else:
        left = max(1.0, seconds - (monotonic() - start))
        runtime, runtime_peak = _run_runtime_checks(path, hints, left, memory)
        peak = max(peak, runtime_peak)
    unchecked |= runtime.unchecked
    reported = {finding.fault for finding in findings}
    # An invalid model is expected not to run.
    explained = reported | ({"unrunnable"} if "invalid_model" in reported else set())
    findings += [finding for finding in runtime.findings if finding.fault not in explained]
    return _diagnosis(path, static, findings, unchecked, runtime, peak)


def fix(
    path: Path, target: Path, hints: CallerHints, diagnosis: Diagnosis, timeout_s: float | None = None
) -> FixResult:
    """Apply the fixes of a diagnosis and write the result; see `apply_fixes`.

    Raises:
        ConfigError: when the folder of `target` does not exist.
        StageError: when the child process that applies the fixes fails.
    """
    if not target.resolve().parent.is_dir():
        raise ConfigError(f"{target}: folder {target.parent} does not exist")
    faults = tuple(finding.fault for finding in diagnosis.findings if finding.fixable)
    if not faults:
        return FixResult(output=None, steps=())
    seconds, memory = read_limits(path, timeout_s or FIX_TIMEOUT_S, fixed=timeout_s is not None)
    try:
        return run_in_subprocess(
            apply_fixes, path, target, hints, faults, timeout_s=seconds, memory_bytes=3 * memory
        ).value
    except SubprocessFailed as error:
        raise StageError(f"{path.name}: the fixes cannot be applied: {error}") from error


def read_limits(path: Path, seconds: float, *, fixed: bool = False) -> tuple[float, int]:
    """Return the limits of a child process that reads a model: seconds and bytes of memory, by the model's size."""
    size = size_bytes(path)
    return seconds if fixed else seconds + math.floor(size / 1e7), MEMORY_BYTES + 8 * size


def _run_runtime_checks(path: Path, hints: CallerHints, seconds: float, memory: int) -> tuple[RuntimeFindings, int]:
    try:
        done = run_in_subprocess(run_runtime_checks, path, hints, timeout_s=seconds, memory_bytes=memory)
    except SubprocessFailed as error:
        cause = f"loading and calling the model failed: {error}"
        hint = "raise the limit with --timeout, or " if error.ending == "time" else ""
        finding = Finding(fault="unrunnable", cause=cause, fix=f"{hint}export the model again", fixable=False)
        return RuntimeFindings(findings=(finding,), unchecked=unrun("the model does not run")), error.peak_rss_bytes
    return done.value, done.peak_rss_bytes


def _diagnosis(
    path: Path,
    static: StaticFindings,
    findings: list[Finding],
    unchecked: dict[Fault, str],
    runtime: RuntimeFindings,
    peak: int,
) -> Diagnosis:
    return Diagnosis(
        model=path.name,
        size_bytes=size_bytes(path),
        opsets=static.opsets,
        ir_version=static.ir_version,
        nodes=static.nodes,
        findings=tuple(findings),
        unchecked={fault: reason for fault, reason in unchecked.items() if fault not in {f.fault for f in findings}},
        timing=runtime.timing,
        batches=runtime.batches,
        peak_rss_bytes=peak,
    )
