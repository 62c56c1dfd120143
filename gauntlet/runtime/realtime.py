"""Timed turns that no ordinary program interrupts: the scheduling policy `SCHED_FIFO` of Linux (sched(7)).

Where threads wait for each other, other work on the machine does not only add noise to a race. It favors short calls,
which fit between two interruptions, and a control of two equal models cannot show that.
"""

import contextlib
import fcntl
import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_native_id
from time import monotonic, sleep

MAX_TURN_MS = 100
"""Longest turn that may keep the processors to itself."""
WATCHDOG_S = 10
"""Time without waiting for anything after which the kernel ends a process with this policy."""
LONGEST_REST_S = 0.5
"""Longest wait for the runtime's threads to become idle."""
LOCK = Path(tempfile.gettempdir()) / f"onnx-gauntlet-realtime-{os.getuid()}.lock"
"""Held during a turn: two races on one machine would interrupt each other, for they have the same priority."""
TASKS, LOAD = Path("/proc/self/task"), Path("/proc/loadavg")


def is_permitted() -> bool:
    """Return whether this process may use the policy: as root, with CAP_SYS_NICE, or with a limit `rtprio`."""
    if not hasattr(os, "sched_setscheduler"):
        return False
    policy, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        return False
    os.sched_setscheduler(0, policy, parameter)
    return True


@contextmanager
def realtime_turn() -> Iterator[None]:
    """Run all threads of this process before those of ordinary programs; then let others run for as long.

    Raises:
        OSError: when that is not permitted.
    """
    resource.setrlimit(resource.RLIMIT_RTTIME, (WATCHDOG_S * 1_000_000, WATCHDOG_S * 1_000_000))
    with _alone():
        start = monotonic()
        try:
            _schedule(os.SCHED_FIFO, priority=1)
            sleep(0.001)  # with this policy: only that lets the watchdog's time begin anew
            yield
        finally:
            _schedule(os.SCHED_OTHER, priority=0)
    if _others_wait():
        sleep(min(monotonic() - start, MAX_TURN_MS / 1000))


def wait_for_idle_threads() -> None:
    """Wait until no other thread of this process runs (on Linux): ONNX Runtime's spin for up to 60 ms after a call."""
    end = monotonic() + LONGEST_REST_S
    while monotonic() < end and _running_threads() > 1:
        sleep(0.002)


def _running_threads() -> int:
    """Return how many threads of this process run, this one with them."""
    return 1 + sum(
        _is_running(t) for t in (TASKS.iterdir() if TASKS.exists() else ()) if t.name != str(get_native_id())
    )


def _is_running(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(") ")[2].startswith("R")
    except OSError:  # it has ended
        return False


@contextmanager
def _alone() -> Iterator[None]:
    try:
        file = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:  # a folder for temporary files that cannot be written to
        yield
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _schedule(policy: int, priority: int) -> None:
    for thread in TASKS.iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))


def _others_wait() -> bool:
    """Return whether other threads than those of this process are ready to run on the machine."""
    try:
        return int(LOAD.read_text().split()[3].partition("/")[0]) > _running_threads()
    except (OSError, ValueError, IndexError):
        return True
