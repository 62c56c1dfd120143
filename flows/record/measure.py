"""What a piece of work costs: seconds, and the process's peak memory meanwhile."""

import contextlib
import time
from pathlib import Path
from typing import Self

from gauntlet.runtime.resources import peak_rss_bytes


class ResourceUsage:
    """A context manager; `seconds` and `peak_rss_bytes` are set on exit."""

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
