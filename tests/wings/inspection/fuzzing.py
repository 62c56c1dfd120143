"""Damaged files are diagnosed and inspected: one in children of its own, as users do, or many in one child."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from mutations import Mutation

from gauntlet.core.errors import PipelineError
from gauntlet.runtime.subprocess_runner import SubprocessFailed, SubprocessResult, run_in_subprocess
from wings.inspection.library import diagnosis, summary

MAX_SECONDS = diagnosis.TIMEOUT_S + 60
MAX_BYTES = 2_000_000_000


def check(mutation: Mutation, folder: Path, timeout_s: float | None = None) -> str:
    """Diagnose and inspect one file; return what became of it."""
    path = folder / f"{mutation.name}.onnx"
    path.write_bytes(mutation.content)
    before = set(psutil.Process().children(recursive=True))  # a server of other tests may run all the while
    start = time.monotonic()
    try:
        result = diagnosis.diagnose(path, timeout_s=timeout_s)
    except PipelineError as error:
        outcome = _one_clear_error(path, error)
    else:
        outcome = "diagnosis"
        assert result.peak_rss_bytes < MAX_BYTES
        for finding in result.findings:
            assert finding.cause
            assert "\n" not in finding.cause + finding.fix
            assert "Traceback" not in finding.cause
    assert time.monotonic() - start < MAX_SECONDS
    start = time.monotonic()
    try:
        summary.inspect(path)
    except PipelineError as error:
        _one_clear_error(path, error)
    assert time.monotonic() - start < MAX_SECONDS
    assert set(psutil.Process().children(recursive=True)) <= before
    return outcome


def check_many(mutations: list[Mutation], folder: Path, timeout_s: float | None = None) -> list[str]:
    """Check all of them in one child; what it cannot do, or ends at, is checked in children of its own."""
    outcomes: list[str] = []
    note = folder / "outcomes"
    while len(outcomes) < len(mutations):
        note.write_text("")
        rest = mutations[len(outcomes) :]
        try:
            run_in_subprocess(_be_the_child, rest, folder, note, timeout_s, timeout_s=120, memory_bytes=MAX_BYTES)
        except SubprocessFailed:
            told = [*note.read_text().split(), "alone"]  # the last one ended it
        else:
            told = note.read_text().split()
        pairs = zip(rest, told, strict=False)
        outcomes += [check(one, folder, timeout_s) if outcome == "alone" else outcome for one, outcome in pairs]
    return outcomes


def _be_the_child(mutations: list[Mutation], folder: Path, note: Path, timeout_s: float | None) -> None:
    def call(function: Callable[..., object], *args: object, **_limits: float) -> SubprocessResult[object]:
        return SubprocessResult(function(*args), 0)

    diagnosis.run_in_subprocess = summary.run_in_subprocess = call  # type: ignore[assignment] - this process is the child
    for mutation in mutations:
        signal.setitimer(signal.ITIMER_REAL, timeout_s or MAX_SECONDS)
        try:
            outcome = check(mutation, folder)
        except Exception:  # in a child of its own it may be one clear error
            outcome = "alone"
        with note.open("a") as file:
            file.write(f"{outcome}\n")


def _one_clear_error(path: Path, error: PipelineError) -> str:
    assert error.exit_code == 3
    assert path.name in str(error)
    assert "\n" not in str(error)
    assert "Traceback" not in str(error)
    cause = error.__cause__
    assert not isinstance(cause, SubprocessFailed) or cause.peak_rss_bytes < MAX_BYTES
    return "error"
