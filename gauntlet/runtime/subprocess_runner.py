"""Run a function on untrusted files in a child process, with limits of time and memory."""

import contextlib
import os
import pickle
import resource
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import IO, Generic, Literal, TypeVar

from gauntlet.core.errors import PipelineError, StageError
from gauntlet.runtime.resources import peak_rss_bytes

T = TypeVar("T")
FailureKind = Literal["error", "crash", "time", "memory"]

POLL_S = 0.02
ADDRESS_SPACE_BYTES = 1 << 30
"""On top of the memory, for unused addresses of libraries, stacks and arenas: 0.4 GB for the runtime with 4 threads."""
MAX_MESSAGE = 400
GRACE_S = 5
"""A child whose parent was killed ends by its own alarm this long after its time limit."""


class SubprocessFailed(StageError):  # noqa: N818 - reads as the reports do
    """The child returned no result: it raised, crashed, or was stopped at a limit."""

    def __init__(self, message: str, ending: FailureKind = "error", peak_rss_bytes: int = 0) -> None:
        super().__init__(message)
        self.ending = ending
        self.peak_rss_bytes = peak_rss_bytes


@dataclass(frozen=True)
class SubprocessResult(Generic[T]):
    """The child's return value and largest resident memory."""

    value: T
    peak_rss_bytes: int


def run_in_subprocess(
    function: Callable[..., T], *args: object, timeout_s: float, memory_bytes: int
) -> SubprocessResult[T]:
    """Call a module's function in a fresh interpreter; function, arguments and result are pickled.

    The time limit includes the interpreter's start of about 0.2 s. Resident memory is checked 50 times a second;
    allocations may be `ADDRESS_SPACE_BYTES` larger.

    Raises:
        PipelineError: the function's own error, when it is one of this project's.
        SubprocessFailed: when the function raised anything else, crashed, or exceeded a limit.
    """
    with tempfile.TemporaryFile() as request, tempfile.TemporaryFile() as result, tempfile.TemporaryFile() as log:
        pickle.dump((function, args), request)
        request.seek(0)
        # The child finds modules where this process does, and never in the current folder.
        code = f"import sys; sys.path[:] = {sys.path!r}; from gauntlet.runtime.subprocess_runner import child_main; "
        code += f"child_main({result.fileno()}, {memory_bytes}, {timeout_s + GRACE_S})"
        deadline = monotonic() + timeout_s
        child = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=request,
            stdout=log,
            stderr=log,
            pass_fds=[result.fileno()],
            start_new_session=True,
        )
        try:
            peak = _watch(child, deadline, timeout_s, memory_bytes)
        finally:
            with contextlib.suppress(ProcessLookupError):  # its own children too
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if child.returncode != 0:
            raise _failure(child.returncode, log, memory_bytes, peak)
        result.seek(0)
        value, error, child_peak = pickle.load(result)
    peak = max(peak, child_peak)
    if isinstance(error, SubprocessFailed):
        error.peak_rss_bytes = peak
    if error is not None:
        raise error
    return SubprocessResult(value, peak)


def _watch(child: subprocess.Popen[bytes], deadline: float, timeout_s: float, memory_bytes: int) -> int:
    """Wait for the child; return the largest resident memory seen, in bytes."""
    import psutil

    peak, process = 0, psutil.Process(child.pid)
    while not _ended(child, POLL_S):
        with contextlib.suppress(psutil.Error):
            peak = max(peak, process.memory_info().rss)
        if peak > memory_bytes:
            raise SubprocessFailed(_too_much(memory_bytes), "memory", peak)
        if monotonic() > deadline:
            raise SubprocessFailed(f"timed out after {timeout_s:.3g} s", "time", peak)
    return peak


def _ended(child: subprocess.Popen[bytes], wait_s: float) -> bool:
    """Wait and return whether the child has ended.

    Linux 5.3 can wait without polling: `Popen.wait` wakes up six times in 20 ms, on a core that the child uses.
    """
    if not hasattr(os, "pidfd_open"):
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(wait_s)
    elif child.returncode is None:
        handle = os.pidfd_open(child.pid)
        try:
            select.select([handle], [], [], wait_s)
        finally:
            os.close(handle)
    return child.poll() is not None


def _too_much(memory_bytes: int) -> str:
    return f"it needs more than {memory_bytes / 1e9:.3g} GB of memory"


def _failure(code: int, log: IO[bytes], memory_bytes: int, peak: int) -> SubprocessFailed:
    log.seek(0)
    text = log.read().decode(errors="replace")
    if "bad_alloc" in text or "MemoryError" in text:
        return SubprocessFailed(_too_much(memory_bytes), "memory", peak)
    last = "".join(text.strip().splitlines()[-1:])[:200]
    how = f"signal {-code}, {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"
    return SubprocessFailed(f"it crashed ({how})" + (f": {last}" if last else ""), "crash", peak)


def child_main(result_to: int, memory_bytes: int, alarm_s: float) -> None:
    """Run in the child: set the limits, read the request from standard input, and write the result to a file."""
    for kind, limit in ((resource.RLIMIT_AS, memory_bytes + ADDRESS_SPACE_BYTES), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):  # without the limit, the parent still watches
            resource.setrlimit(kind, (limit, limit))
    signal.setitimer(signal.ITIMER_REAL, alarm_s)  # not handled, so it ends the process
    value: object = None
    failure: PipelineError | None = None
    try:
        function, args = pickle.load(sys.stdin.buffer)
        value = function(*args)
    except MemoryError:
        failure = SubprocessFailed(_too_much(memory_bytes), "memory")
    except PipelineError as error:
        failure = error
    except Exception as error:  # any other error becomes one line, with the traceback as a note
        failure = SubprocessFailed(" ".join(f"{type(error).__name__}: {error}".split())[:MAX_MESSAGE])
        failure.add_note(traceback.format_exc())
    with os.fdopen(result_to, "wb") as file:
        pickle.dump((value, failure, peak_rss_bytes()), file)
    os._exit(0)  # skips a library's threads and destructors, which may crash
