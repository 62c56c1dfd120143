"""What a piece of work cost: seconds, and the most memory that the process held meanwhile."""

import contextlib
import re
import resource
import time
from pathlib import Path
from typing import Self


class Measured:
    """A context manager; `seconds` and `peak_rss_bytes` are known when it is left."""

    seconds: float = 0.0
    peak_rss_bytes: int = 0

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):  # Linux: 5 resets the peak, so that it is this work's alone
            Path("/proc/self/clear_refs").write_text("5")
        self._start = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._start
        self.peak_rss_bytes = peak_rss_bytes()


def peak_rss_bytes() -> int:
    """Return the process's peak resident memory; since the last reset where the system has one."""
    try:
        found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        found = None
    return int(found[1]) * 1024 if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
