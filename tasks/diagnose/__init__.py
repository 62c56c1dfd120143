"""The classic faults of ONNX models: found, explained in one line, and mended where that is safe.

This side never reads the model. Children do, each with a limit of time and memory, so that a file which crashes, hangs
or floods whoever opens it ends in one finding or one error.
"""

import math
from pathlib import Path
from time import monotonic

from tasks.diagnose.examine import Examination, examine, size_bytes
from tasks.diagnose.finding import Diagnosis, Evidence, Fault, Finding, Mending
from tasks.diagnose.mend import mend
from tasks.diagnose.probe import Probe, probe, unrun
from tasks.errors import ConfigError, StageError
from tasks.runtime.sandbox import ChildFailed, run_apart

TIMEOUT_S = 7.0
MENDING_TIMEOUT_S = 120.0
"""For a small model; a large one gets more, see `limits`."""
MEMORY_BYTES = 1_500_000_000


def diagnose(path: Path, evidence: Evidence | None = None, timeout_s: float | None = None) -> Diagnosis:
    """Look for every fault.

    Args:
        path: the model.
        evidence: what is known beside it.
        timeout_s: limit for the whole; by default 7 s, and 1 s more for each 10 MB.

    Raises:
        ConfigError: when there is no such file, or a file of the evidence cannot be read.
        StageError: when the file is no ONNX model, or reading it goes wrong.
    """
    evidence = evidence or Evidence()
    refuse_wrong_file(path)
    seconds, memory = limits(path, timeout_s or TIMEOUT_S, fixed=timeout_s is not None)
    start = monotonic()
    try:
        seen = run_apart(examine, path, evidence, timeout_s=seconds, memory_bytes=memory)
    except ChildFailed as error:
        raise StageError(f"{path.name}: the model cannot be examined: {error}") from error
    examination = seen.value
    found = list(examination.findings)
    unchecked, peak = dict(examination.unchecked), seen.peak_rss_bytes
    ran = Probe()
    blocked = next((f for f in found if f.fault in ("external_data", "too_new", "unregistered_operator")), None)
    if blocked is not None:
        unchecked |= unrun("the model cannot be loaded")
    else:
        left = max(1.0, seconds - (monotonic() - start))
        ran, used = _probe(path, evidence, left, memory)
        peak = max(peak, used)
    unchecked |= ran.unchecked
    known = {finding.fault for finding in found}
    # That an invalid model does not run is no news.
    explained = known | ({"unrunnable"} if "invalid_model" in known else set())
    found += [finding for finding in ran.findings if finding.fault not in explained]
    return _diagnosis(path, examination, found, unchecked, ran, peak)


def fix(path: Path, target: Path, evidence: Evidence, diagnosis: Diagnosis, timeout_s: float | None = None) -> Mending:
    """Mend what a diagnosis called fixable, and write the result; see `mend`.

    Raises:
        ConfigError: when the target's folder does not exist.
        StageError: when the process that mends fails.
    """
    if not target.resolve().parent.is_dir():
        raise ConfigError(f"{target}: there is no folder {target.parent}")
    faults = tuple(finding.fault for finding in diagnosis.findings if finding.fixable)
    if not faults:
        return Mending(output=None, steps=())
    seconds, memory = limits(path, timeout_s or MENDING_TIMEOUT_S, fixed=timeout_s is not None)
    try:
        return run_apart(mend, path, target, evidence, faults, timeout_s=seconds, memory_bytes=3 * memory).value
    except ChildFailed as error:
        raise StageError(f"{path.name}: the model cannot be mended: {error}") from error


def refuse_wrong_file(path: Path) -> None:
    """Raise `ConfigError` unless there is a file with the suffix of an ONNX model."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    if path.suffix != ".onnx":
        raise ConfigError(f"{path}: not a model: a file named *.onnx is asked for")


def limits(path: Path, seconds: float, *, fixed: bool = False) -> tuple[float, int]:
    """Return how many seconds and how many bytes of memory the reading of a model may take: more for large ones."""
    size = size_bytes(path)
    return seconds if fixed else seconds + math.floor(size / 1e7), MEMORY_BYTES + 8 * size


def _probe(path: Path, evidence: Evidence, seconds: float, memory: int) -> tuple[Probe, int]:
    try:
        done = run_apart(probe, path, evidence, timeout_s=seconds, memory_bytes=memory)
    except ChildFailed as error:
        cause = f"when it is loaded and called: {error}"
        hint = "give it more time with --timeout, or " if error.ending == "time" else ""
        finding = Finding(fault="unrunnable", cause=cause, fix=f"{hint}export it again", fixable=False)
        return Probe(findings=(finding,), unchecked=unrun("the model does not run")), error.peak_rss_bytes
    return done.value, done.peak_rss_bytes


def _diagnosis(
    path: Path, seen: Examination, found: list[Finding], unchecked: dict[Fault, str], ran: Probe, peak: int
) -> Diagnosis:
    return Diagnosis(
        model=path.name,
        size_bytes=size_bytes(path),
        opsets=seen.opsets,
        ir_version=seen.ir_version,
        nodes=seen.nodes,
        findings=tuple(found),
        unchecked={fault: why for fault, why in unchecked.items() if fault not in {f.fault for f in found}},
        timing=ran.timing,
        batches=ran.batches,
        peak_rss_bytes=peak,
    )
