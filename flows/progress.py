"""From a stage's progress records to MLflow's live metrics and Prefect's progress bar."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.runtime import task_run

from tasks.workspace import progress_log

if TYPE_CHECKING:
    from flows.run import Run


class Relay(logging.Handler):
    """Takes the records that carry metrics; the others are for a terminal only."""

    def __init__(self, run: "Run", stage: str) -> None:
        super().__init__(logging.INFO)
        self.run, self.stage = run, stage
        self.artifact: UUID | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Log the metrics at their step and move the bar."""
        metrics = {f"{self.stage}.{name}": value for name, value in record.metrics.items()}  # type: ignore[attr-defined]
        done, total = record.done, record.total  # type: ignore[attr-defined]
        self.run.journal.append("metrics", run="pipeline", metrics=metrics, step=done)
        self.run.sender.send()
        if task_run.id is None:
            return
        percent = 100.0 * done / total
        if self.artifact is None:
            self.artifact = create_progress_artifact(percent, key=f"{self.stage}-progress")  # type: ignore[assignment]
        else:
            update_progress_artifact(self.artifact, percent)


@contextmanager
def relayed(run: "Run", stage: str) -> Iterator[None]:
    """Relay the progress records of the stage that runs inside."""
    relay = Relay(run, stage)
    progress_log.addHandler(relay)
    try:
        yield
    finally:
        progress_log.removeHandler(relay)
