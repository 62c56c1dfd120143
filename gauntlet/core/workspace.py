"""What a stage may read, write and report while it runs."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from gauntlet.core.artifact import Artifact, Store

progress_log = logging.getLogger("gauntlet.progress")
steps_log = logging.getLogger("gauntlet-steps")


def gauntlet_home() -> Path:
    """Return the folder of everything that runs leave: `$GAUNTLET_HOME`, or `.gauntlet` in the current folder."""
    return Path(os.environ.get("GAUNTLET_HOME", ".gauntlet")).resolve()


@dataclass(frozen=True)
class Workspace:
    """The artifact store, and a folder that belongs to this work alone and survives a kill, so that it can resume."""

    store: Store
    folder: Path

    def path(self, artifact: Artifact) -> Path:
        """Return the file of an input artifact; it must not be changed."""
        return self.store.path(artifact)

    def store_file(self, file: Path, *companions: Path) -> Artifact:
        """Move a finished file from the folder into the store."""
        return self.store.put(file, *companions)

    def progress(self, done: int, total: int, unit: str, **metrics: float) -> None:
        """Log progress: with metrics to `gauntlet.progress`, without to `gauntlet-steps`, which only moves a bar."""
        log = progress_log if metrics else steps_log
        text = " ".join(f"{name}={value:.4g}" for name, value in metrics.items())
        extra = {"work": self.folder.name, "done": done, "total": total, "unit": unit, "metrics": metrics}
        log.info("%s %d/%d %s", unit, done, total, text, extra=extra)
