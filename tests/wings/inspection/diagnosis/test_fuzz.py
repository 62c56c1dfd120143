"""Two hundred damaged or hostile files: whatever they are, the answer is a diagnosis or one clear error.

One is diagnosed and inspected in children of its own, as users do, or many in one child.
"""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from mutations import Mutation, mutations, sample

from gauntlet.core.errors import PipelineError
from gauntlet.runtime.subprocess_runner import SubprocessFailed, SubprocessResult, run_in_subprocess
from wings.inspection.library import diagnosis, summary

pytestmark = pytest.mark.usefixtures("apart")

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


def violent() -> list[Mutation]:
    """Return those that ask for terabytes or do not end."""
    return [m for m in mutations() if "absurd_intermediate" in m.name or "endless" in m.name]


def test_every_damaged_file_is_a_diagnosis_or_one_clear_error(tmp_path: Path) -> None:
    """All but the violent ones share one child; whoever does not fit in there is checked alone."""
    outcomes = check_many([mutation for mutation in mutations() if mutation not in violent()], tmp_path)
    assert len(outcomes) == 180
    assert set(outcomes) == {"diagnosis", "error"}


@pytest.mark.slow
def test_file_that_ends_the_child_of_many_is_checked_alone(tmp_path: Path) -> None:
    first, last = sample(2)
    endless = next(mutation for mutation in violent() if "endless-13" in mutation.name)
    before, alone, after = check_many([first, endless, last], tmp_path, timeout_s=2)
    assert (before, after) == ("error", "diagnosis")
    assert alone in ("diagnosis", "error")


@pytest.mark.nightly
@pytest.mark.parametrize("mutation", {m.content: m for m in violent()}.values(), ids=lambda m: m.name)
def test_violent_file_is_a_diagnosis_or_one_clear_error(tmp_path: Path, mutation: Mutation) -> None:
    check(mutation, tmp_path)
