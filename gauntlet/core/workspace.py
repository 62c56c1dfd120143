"""Where a stage reads, writes and says how far it is; the only way that a stage touches the world."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from gauntlet.core.artifact import Artifact, Store

progress_log = logging.getLogger("gauntlet.progress")
steps_log = logging.getLogger("gauntlet-steps")


def gauntlet_home() -> Path:
    """Return the folder where everything lives that runs leave: `$GAUNTLET_HOME`, or `.gauntlet` in the current one."""
    return Path(os.environ.get("GAUNTLET_HOME", ".gauntlet")).resolve()


@dataclass(frozen=True)
class Workspace:
    """What a stage is given besides its configuration and its inputs.

    `folder` belongs to this piece of work alone and survives a kill: the same work, started again, finds in it what it
    left there.
    """

    store: Store
    folder: Path

    def path(self, artifact: Artifact) -> Path:
        """Return the file of an input artifact; it must not be changed."""
        return self.store.path(artifact)

    def store_file(self, file: Path, *companions: Path) -> Artifact:
        """Move a finished file from the folder into the store."""
        return self.store.put(file, *companions)

    def progress(self, done: int, total: int, unit: str, **metrics: float) -> None:
        """Say how far the work is, with the metrics of this step, where it has any.

        It goes through standard loggers: whoever runs the stage decides whether it becomes a bar on a terminal, a point
        on a chart, or nothing. A step with metrics is news (`gauntlet.progress`); one without only moves a bar
        (`gauntlet-steps`, a logger apart, so that nobody who keeps the news gets a line a batch).
        """
        log = progress_log if metrics else steps_log
        text = " ".join(f"{name}={value:.4g}" for name, value in metrics.items())
        extra = {"done": done, "total": total, "unit": unit, "metrics": metrics}
        log.info("%s %d/%d %s", unit, done, total, text, extra=extra)
