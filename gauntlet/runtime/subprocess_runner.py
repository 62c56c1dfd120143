"""What touches a foreign file runs in a process of its own: a crash, a hang or a flood of memory ends that one only."""

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
from typing import IO, Any, Generic, Literal, TypeVar

from gauntlet.core.errors import PipelineError, StageError
from gauntlet.runtime.resources import peak_rss_bytes

T = TypeVar("T")
FailureKind = Literal["error", "crash", "time", "memory"]

POLL_S = 0.02
ADDRESS_SPACE_BYTES = 1 << 30
"""On top of the memory: libraries, stacks and reserved arenas take addresses that hold nothing. The runtime with four
threads was seen to take 0.4 GB of them."""
MAX_MESSAGE = 400
GRACE_S = 5
"""An orphan, whose parent was killed, ends by its own alarm so long after its time is up."""


class SubprocessFailed(StageError):  # noqa: N818 - what happened, in the words of the reports
    """The child did not answer: it raised, crashed, or was ended at one of its limits."""

    def __init__(self, message: str, ending: FailureKind = "error", peak_rss_bytes: int = 0) -> None:
        super().__init__(message)
        self.ending: FailureKind = ending
        self.peak_rss_bytes = peak_rss_bytes


@dataclass(frozen=True)
class SubprocessResult(Generic[T]):
    """What a child returned, and what it cost."""

    value: T
    seconds: float
    peak_rss_bytes: int


def run_in_subprocess(
    function: Callable[..., T], *args: object, timeout_s: float, memory_bytes: int
) -> SubprocessResult[T]:
    """Return `function(*args)`, computed in a fresh interpreter that imports only what the function's module does.

    Args:
        function: a module's function; it, its arguments and its result are pickled.
        args: its arguments.
        timeout_s: wall-clock limit, the interpreter's start of about 0.2 s included.
        memory_bytes: limit of the child's resident memory, watched 50 times a second; what it reserves at once may be
            `ADDRESS_SPACE_BYTES` more.

    Raises:
        PipelineError: what the function raised, when it is one of this project's errors.
        ChildFailed: when it raised anything else, crashed, or met a limit.
    """
    with tempfile.TemporaryFile() as request, tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as log:
        pickle.dump((function, args), request)
        request.seek(0)
        address_space = memory_bytes + ADDRESS_SPACE_BYTES
        # The child finds modules where this process does, and never in the folder that it happens to stand in.
        code = f"import sys; sys.path[:] = {sys.path!r}; from gauntlet.runtime.subprocess_runner import child_main; "
        code += f"child_main({answer.fileno()}, {address_space}, {timeout_s + GRACE_S})"
        start = monotonic()
        child = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=request,
            stdout=log,
            stderr=log,
            pass_fds=[answer.fileno()],
            start_new_session=True,
        )
        try:
            peak = _watch(child, start + timeout_s, timeout_s, memory_bytes)
        finally:
            with contextlib.suppress(ProcessLookupError):  # its own children too
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        seconds = monotonic() - start
        if child.returncode != 0:
            raise _failure(child.returncode, log, memory_bytes, peak)
        answer.seek(0)
        kind, value, used = pickle.load(answer)
    peak = max(peak, used)
    if kind == "memory":
        raise SubprocessFailed(_too_much(memory_bytes), "memory", peak)
    if kind == "raised":
        raise value
    if kind == "failed":
        message, trace = value
        failure = SubprocessFailed(message, "error", peak)
        failure.add_note(trace)
        raise failure
    return SubprocessResult(value, seconds, peak)


def _watch(child: subprocess.Popen[bytes], deadline: float, timeout_s: float, memory_bytes: int) -> int:
    """Wait until the child has ended; return the largest resident memory that was seen, in bytes."""
    import psutil

    peak, process = 0, psutil.Process(child.pid)
    while not _ended(child, POLL_S):
        with contextlib.suppress(psutil.Error):
            peak = max(peak, process.memory_info().rss)
        if peak > memory_bytes:
            raise SubprocessFailed(_too_much(memory_bytes), "memory", peak)
        if monotonic() > deadline:
            raise SubprocessFailed(f"it was not done within {timeout_s:.3g} s", "time", peak)
    return peak


def _ended(child: subprocess.Popen[bytes], wait_s: float) -> bool:
    """Wait for the child so long, and tell whether it has ended.

    Asleep where the system can (Linux 5.3): `Popen.wait` wakes up six times in 20 ms, on a core that the child uses.
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
    name = signal.strsignal(-code) if code < 0 else None
    how = f"signal {-code}, {name}" if code < 0 else f"exit code {code}"
    return SubprocessFailed(f"it crashed ({how})" + (f": {last}" if last else ""), "crash", peak)


def child_main(answer_to: int, address_space_bytes: int, alarm_s: float) -> None:
    """Be the child: set the limits, read the request from standard input, and write the answer."""
    for limit, value in ((resource.RLIMIT_AS, address_space_bytes), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):  # a system that lacks the limit still has the parent's watch
            resource.setrlimit(limit, (value, value))
    signal.setitimer(signal.ITIMER_REAL, alarm_s)  # nobody handles it, so it ends the process
    answer: tuple[str, Any]
    try:
        function, args = pickle.load(sys.stdin.buffer)
        answer = ("value", function(*args))
    except MemoryError:
        answer = ("memory", None)
    except PipelineError as error:
        answer = ("raised", error)
    except Exception as error:  # whatever it is, it ends here and not in a traceback
        message = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_MESSAGE]
        answer = ("failed", (message, traceback.format_exc()))
    with os.fdopen(answer_to, "wb") as file:
        pickle.dump((*answer, peak_rss_bytes()), file)
    os._exit(0)  # a library's threads or destructors cannot spoil an answer that is written
