"""Find common faults of ONNX models, explain each in one line, and fix those that are safe to fix.

Only child processes read the model, with limits of time and memory, so that a file which crashes, hangs or exhausts
its reader ends in one finding or one error.
"""

import math
from pathlib import Path
from time import monotonic

from gauntlet.core.errors import ConfigError, StageError
from gauntlet.runtime.subprocess_runner import SubprocessFailed, run_in_subprocess
from wings.inspection.library import refuse_wrong_file
from wings.inspection.library.diagnosis.findings import CallerHints, Diagnosis, Finding, FixResult
from wings.inspection.library.diagnosis.fixes import apply_fixes
from wings.inspection.library.diagnosis.runtime_checks import RuntimeFindings, run_runtime_checks, unrun
from wings.inspection.library.diagnosis.static_checks import run_static_checks, size_bytes

TIMEOUT_S = 30.0  # a busy machine takes several seconds to import ONNX Runtime
FIX_TIMEOUT_S = 120.0
"""For a small model; larger ones get more, see `read_limits`."""
MEMORY_BYTES = 1_500_000_000


def diagnose(path: Path, hints: CallerHints | None = None, timeout_s: float | None = None) -> Diagnosis:
    """Check a model for every fault, within `timeout_s`; by default within 30 s, and 1 s more for each 10 MB.

    Raises:
        ConfigError: when the file does not exist, or a file that the hints name cannot be read.
        StageError: when the file is not an ONNX model, or cannot be read within the limits.
    """
    hints = hints or CallerHints()
    refuse_wrong_file(path)
    seconds, memory = read_limits(path, timeout_s, TIMEOUT_S)
    end = monotonic() + seconds
    try:
        checked = run_in_subprocess(run_static_checks, path, hints, timeout_s=seconds, memory_bytes=memory)
    except SubprocessFailed as error:
        fix = ". Fix: raise the limit with --timeout" if error.ending == "time" else ""
        raise StageError(f"{path.name}: checking the model failed: {error}{fix}") from error
    static, peak = checked.value, checked.peak_rss_bytes
    known = {finding.fault for finding in static.findings}
    if known & {"external_data", "too_new", "unregistered_operator"}:
        runtime = RuntimeFindings(unchecked=unrun("the model cannot be loaded"))
    else:
        runtime, runtime_peak = _run_runtime_checks(path, hints, max(1.0, end - monotonic()), memory)
        peak = max(peak, runtime_peak)
    # An invalid model need not run.
    explained = known | ({"unrunnable"} if known & {"invalid_model", "repeated_names", "unsorted_nodes"} else set())
    findings = (*static.findings, *(finding for finding in runtime.findings if finding.fault not in explained))
    faults, unchecked = {finding.fault for finding in findings}, static.unchecked | runtime.unchecked
    return static.replace(
        findings=findings,
        unchecked={fault: reason for fault, reason in unchecked.items() if fault not in faults},
        timing=runtime.timing,
        batches=runtime.batches,
        peak_rss_bytes=peak,
    )


def fix(
    path: Path, target: Path, hints: CallerHints, diagnosis: Diagnosis, timeout_s: float | None = None
) -> FixResult:
    """Apply the fixes of a diagnosis and write the result; `ConfigError` when the target's folder does not exist."""
    if not target.resolve().parent.is_dir():
        raise ConfigError(f"{target}: folder {target.parent} does not exist")
    faults = tuple(finding.fault for finding in diagnosis.findings if finding.fixable)
    if not faults:
        return FixResult(output=None, steps=())
    seconds, memory = read_limits(path, timeout_s, FIX_TIMEOUT_S)
    arguments = (path, target, hints, faults)
    try:
        return run_in_subprocess(apply_fixes, *arguments, timeout_s=seconds, memory_bytes=3 * memory).value
    except SubprocessFailed as error:
        raise StageError(f"{path.name}: the fixes cannot be applied: {error}") from error


def read_limits(path: Path, timeout_s: float | None, default_s: float) -> tuple[float, int]:
    """Return the limits of a child process that reads a model: seconds and bytes of memory, by the model's size."""
    size = size_bytes(path)
    return timeout_s or default_s + math.floor(size / 1e7), MEMORY_BYTES + 8 * size


def _run_runtime_checks(path: Path, hints: CallerHints, seconds: float, memory: int) -> tuple[RuntimeFindings, int]:
    try:
        done = run_in_subprocess(run_runtime_checks, path, hints, timeout_s=seconds, memory_bytes=memory)
    except SubprocessFailed as error:
        cause = f"loading and calling the model failed: {error}"
        hint = "raise the limit with --timeout, or " if error.ending == "time" else ""
        finding = Finding(fault="unrunnable", cause=cause, fix=f"{hint}export the model again", fixable=False)
        return RuntimeFindings(findings=(finding,), unchecked=unrun("the model does not run")), error.peak_rss_bytes
    return done.value, done.peak_rss_bytes
