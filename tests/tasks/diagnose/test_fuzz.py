"""Two hundred damaged or hostile files: whatever they are, the answer is a diagnosis or one clear error."""

import time
from pathlib import Path

import psutil
import pytest
from mutations import Mutation, mutations, sample

from tasks.diagnose import diagnose
from tasks.errors import PipelineError
from tasks.inspect import inspect
from tasks.runtime.sandbox import ChildFailed

MAX_SECONDS = 10
MAX_BYTES = 2_000_000_000

pytestmark = pytest.mark.usefixtures("apart")


def check(mutation: Mutation, folder: Path, timeout_s: float | None = None) -> str:
    """Diagnose and inspect one file; return what became of it."""
    path = folder / f"{mutation.name}.onnx"
    path.write_bytes(mutation.content)
    before = set(psutil.Process().children(recursive=True))  # a server of other tests may run all the while
    start = time.monotonic()
    try:
        diagnosis = diagnose(path, timeout_s=timeout_s)
    except PipelineError as error:
        outcome = one_clear_error(path, error)
    else:
        outcome = "diagnosis"
        assert diagnosis.peak_rss_bytes < MAX_BYTES
        for finding in diagnosis.findings:
            assert finding.cause
            assert "\n" not in finding.cause + finding.fix
            assert "Traceback" not in finding.cause
    assert time.monotonic() - start < MAX_SECONDS
    start = time.monotonic()
    try:
        inspect(path)
    except PipelineError as error:
        one_clear_error(path, error)
    assert time.monotonic() - start < MAX_SECONDS
    assert set(psutil.Process().children(recursive=True)) <= before
    return outcome


def one_clear_error(path: Path, error: PipelineError) -> str:
    assert error.exit_code == 3
    assert path.name in str(error)
    assert "\n" not in str(error)
    assert "Traceback" not in str(error)
    cause = error.__cause__
    assert not isinstance(cause, ChildFailed) or cause.peak_rss_bytes < MAX_BYTES
    return "error"


def test_mutations_are_two_hundred_different_files_and_the_same_at_every_run() -> None:
    made = mutations()
    assert len(made) == 200
    assert len({mutation.name for mutation in made}) == 200
    assert len({mutation.content for mutation in made}) > 190
    assert made == mutations.__wrapped__()  # made again, not remembered


def test_damaged_file_is_a_diagnosis_or_one_clear_error(tmp_path: Path) -> None:
    outcomes = [check(mutation, tmp_path) for mutation in sample(8) if "endless" not in mutation.name]
    assert set(outcomes) == {"diagnosis", "error"}


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1], ids=["nested", "looping"])
def test_file_that_never_ends_is_ended(tmp_path: Path, number: int) -> None:
    endless = [mutation for mutation in mutations() if "endless" in mutation.name]
    check(endless[number], tmp_path, timeout_s=2.0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_damaged_file_is_a_diagnosis_or_one_clear_error(tmp_path: Path) -> None:
    outcomes = [check(mutation, tmp_path) for mutation in mutations()]
    assert len(outcomes) == 200
