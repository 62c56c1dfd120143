"""What a stage may read, write and report while it runs."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gauntlet.core.artifact import Artifact, Store
from gauntlet.core.errors import StageError

progress_log = logging.getLogger("gauntlet.progress")
steps_log = logging.getLogger("gauntlet-steps")
LOGS = (logging.getLogger("gauntlet"), steps_log)
"""Of all that is logged; the first has `progress_log` below it."""


@contextmanager
def handled(handler: logging.Handler, *logs: logging.Logger) -> Iterator[None]:
    """Give a handler what is logged inside."""
    for log in logs:
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    try:
        yield
    finally:
        for log in logs:
            log.removeHandler(handler)


def gauntlet_home() -> Path:
    """Return the folder of everything that runs leave: `$GAUNTLET_HOME`, or `.gauntlet` in the current folder."""
    return Path(os.environ.get("GAUNTLET_HOME") or ".gauntlet").resolve()


@dataclass(frozen=True)
class Workspace:
    """The artifact store, and a folder that belongs to this work alone and survives a kill, so that it can resume."""

    store: Store
    folder: Path
    _read: set[str] = field(default_factory=set, repr=False, compare=False)

    def path(self, artifact: Artifact) -> Path:
        """Return the file of an input artifact; it must not be changed.

        Raises:
            StageError: when it is no longer what was stored.
        """
        path = self.store.path(artifact)
        if artifact.path not in self._read and not self.store.is_intact_here(artifact):
            raise StageError(f"{path}: missing or changed since it was stored. Fix: run again, which makes it again")
        self._read.add(artifact.path)
        return path

    def store_file(self, file: Path, *companions: Path) -> Artifact:
        """Move a finished file from the folder into the store."""
        return self.store.put(file, *companions)

    def progress(self, done: int, total: int, unit: str, **metrics: float) -> None:
        """Log progress: with metrics to `gauntlet.progress`, without to `gauntlet-steps`, which only moves a bar."""
        log = progress_log if metrics else steps_log
        text = " ".join(f"{name}={value:.4g}" for name, value in metrics.items())
        extra = {"work": self.folder.name, "done": done, "total": total, "unit": unit, "metrics": metrics}
        log.info("%s %d/%d %s", unit, done, total, text, extra=extra)
