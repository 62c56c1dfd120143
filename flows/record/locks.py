"""File locks that the kernel releases however their holder ends (`flock`)."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

HOST_LOCK = Path(os.environ.get("GAUNTLET_HOST_LOCK") or "/tmp/onnx-gauntlet-host.lock")  # whatever TMPDIR is
NEXT_ON_HOST = HOST_LOCK.with_name(f"{HOST_LOCK.name}.next")
"""Whoever waits for the host holds this one meanwhile."""


@contextmanager
def locked(path: Path, *, shared: bool = False, on_wait: Callable[[], None] | None = None) -> Iterator[int]:
    """Hold a lock on a file and yield its descriptor. Waiting has no limit; `on_wait` is called once before it."""
    path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # the first lock in a home makes the home
    path.parent.mkdir(exist_ok=True)
    try:  # read-only: another user's file in a shared folder allows no more, and a lock needs no more
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        try:
            fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_wait is not None:
                on_wait()
            fcntl.flock(descriptor, mode)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def host(*, alone: bool, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Share the host with other work of this project, or, to measure, keep it for this work alone.

    Work is let in in the order in which it asks. With `flock` alone, work that overlaps would keep a benchmark waiting
    until none is left.
    """
    once = cache(on_wait) if on_wait else None
    with ExitStack() as held:
        with locked(NEXT_ON_HOST, shared=not alone, on_wait=once):
            held.enter_context(locked(HOST_LOCK, shared=not alone, on_wait=once))
        yield


def try_exclusive(descriptor: int) -> bool:
    """Turn a lock that is held into an exclusive one, if no other process holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """Tell whether some process holds a lock on the file."""
    if not path.exists():
        return False
    with path.open() as file:
        return not try_exclusive(file.fileno())
