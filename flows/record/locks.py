"""File locks that the kernel releases however their holder ends (`flock`)."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HOST_LOCK = Path(os.environ.get("GAUNTLET_HOST_LOCK", "/tmp/onnx-gauntlet-host.lock"))  # whatever TMPDIR is


@contextmanager
def locked(path: Path, *, shared: bool = False, on_wait: Callable[[], None] | None = None) -> Iterator[int]:
    """Hold a lock on a file and yield its descriptor. Waiting has no limit; `on_wait` is called once before it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:  # read-only: another user's file in a shared folder allows no more, and a lock needs no more
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o666)
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
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return not try_exclusive(descriptor)
    finally:
        os.close(descriptor)
