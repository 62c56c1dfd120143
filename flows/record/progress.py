"""From a stage's progress records to the run's live metrics and Prefect's progress bar."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.runtime import task_run

from flows.record.run import Run
from gauntlet.core.workspace import progress_log


class ProgressRelay(logging.Handler):
    """Relays the records that carry metrics; the others only move the bar on a terminal."""

    def __init__(self, run: Run, stage: str) -> None:
        super().__init__(logging.INFO)
        self.run, self.stage = run, stage
        self.artifact: UUID | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Tell the run the metrics of this step, and move Prefect's bar."""
        done, total = record.done, record.total  # type: ignore[attr-defined]
        self.run.progress(self.stage, done, record.metrics)  # type: ignore[attr-defined]
        if task_run.id is None:
            return
        percent = 100.0 * done / total
        if self.artifact is None:
            self.artifact = create_progress_artifact(percent, key=f"{self.stage}-progress")  # type: ignore[assignment]
        else:
            update_progress_artifact(self.artifact, percent)


@contextmanager
def relay_progress(run: Run, stage: str) -> Iterator[None]:
    """Relay the progress of the stage that runs inside."""
    relay = ProgressRelay(run, stage)
    progress_log.addHandler(relay)
    try:
        yield
    finally:
        progress_log.removeHandler(relay)
