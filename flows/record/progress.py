"""From a stage's progress records to the run's live metrics and Prefect's progress bar, from whichever process."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.runtime import task_run

from flows.record.run import Run
from gauntlet.core.workspace import LOGS, handled, progress_log

log = logging.getLogger("gauntlet")

EXTRAS = ("work", "began", "ended", "done", "total", "unit", "metrics")
"""What progress records carry besides their text."""


class ProgressRelay(logging.Handler):
    """Relays the records of one work that carry metrics; the others only move the bar on a terminal."""

    def __init__(self, run: Run, stage: str, work: str) -> None:
        super().__init__(logging.INFO)
        self.run, self.stage, self.work = run, stage, work
        self.artifact: UUID | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Tell the run the metrics of this step, and move Prefect's bar."""
        if getattr(record, "work", None) != self.work:
            return
        done, total = record.done, record.total  # type: ignore[attr-defined]
        self.run.progress(self.stage, done, record.metrics)  # type: ignore[attr-defined]
        if task_run.id is None or not self.run.prefect_responds:
            return
        try:
            self._move_bar(100.0 * done / total)
        except Exception as error:  # whatever is wrong with the server, the work goes on
            self.run.prefect_responds = False
            log.warning("Prefect does not take the run's progress (%s); the run goes on without it", error)

    def _move_bar(self, percent: float) -> None:
        if self.artifact is None:
            about = f"Progress of the stage {self.stage}"
            self.artifact = create_progress_artifact(percent, key=f"{self.stage}-progress", description=about)  # type: ignore[assignment]
        else:
            update_progress_artifact(self.artifact, percent)


@contextmanager
def relay_progress(run: Run, stage: str, work: str) -> Iterator[None]:
    """Relay the progress of a stage's work, which is named by its key, while it is done."""
    with handled(ProgressRelay(run, stage, work), progress_log):
        yield


class ProgressWriter(logging.Handler):
    """Writes log records to a file, each as one line of JSON."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.INFO)
        self.path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Append the record."""
        extras = {name: getattr(record, name) for name in EXTRAS if hasattr(record, name)}
        line = {"name": record.name, "level": record.levelno, "message": record.getMessage(), "extras": extras}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


@contextmanager
def write_progress(path: Path) -> Iterator[None]:
    """Write what is logged inside to a file, in a process whose log nobody reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with handled(ProgressWriter(path), *LOGS):
        yield


class ProgressReader:
    """Logs in this process what a `ProgressWriter` has written in another."""

    def __init__(self, path: Path) -> None:
        self.path, self.position = path, 0

    def relay(self) -> None:
        """Log what is new."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self.position)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.position += len(line)
                _log_again(json.loads(line))

    def close(self) -> None:
        """Log the rest, and remove the file."""
        self.relay()
        self.path.unlink(missing_ok=True)


def _log_again(line: dict[str, object]) -> None:
    """Log a record again, but not to Prefect, which has it from the process that it came from."""
    fields = {"msg": line["message"], "levelno": line["level"], "name": line["name"], "send_to_api": False}
    fields["levelname"] = logging.getLevelName(int(str(line["level"])))
    extras = line["extras"] if isinstance(line["extras"], dict) else {}
    record = logging.makeLogRecord(fields | extras)
    logging.getLogger(record.name).handle(record)
