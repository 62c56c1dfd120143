"""What a worker logs in another process reaches the terminal and the record of the run."""

import logging
from pathlib import Path

import pytest

from flows.record.progress import ProgressReader, write_progress
from gauntlet.core.artifact import Store
from gauntlet.core.workspace import Workspace, steps_log

log = logging.getLogger("gauntlet")


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path, space = tmp_path / "work" / "key.progress", Workspace(Store(tmp_path / "store"), tmp_path / "key")
    with write_progress(path):
        steps_log.info("", extra={"work": "key", "began": "prune p"})
        space.progress(1, 6, "epoch", loss=0.5)
        space.progress(3, 40, "batch")
        log.warning("%s is short", "memory")
    log.warning("nobody reads this")
    return path


def test_records_are_logged_again_with_their_progress(written: Path) -> None:
    heard = Records()
    reader = ProgressReader(written)
    for logger in (log, steps_log):
        logger.addHandler(heard)
    try:
        reader.relay()
        with written.open("a") as file:
            file.write('{"name": "gauntlet", "level": 30, "mess')
        reader.relay()  # a line that is still being written is left for later
    finally:
        for logger in (log, steps_log):
            logger.removeHandler(heard)
    began, epoch, batch, warning = heard.records
    assert (began.name, began.began, began.work) == ("gauntlet-steps", "prune p", "key")  # type: ignore[attr-defined]
    assert (epoch.name, epoch.done, epoch.total, epoch.metrics) == ("gauntlet.progress", 1, 6, {"loss": 0.5})  # type: ignore[attr-defined]
    assert (batch.name, batch.unit, batch.work) == ("gauntlet-steps", "batch", "key")  # type: ignore[attr-defined]
    assert (warning.levelno, warning.levelname, warning.getMessage()) == (logging.WARNING, "WARNING", "memory is short")
    assert not warning.send_to_api  # type: ignore[attr-defined] - the worker's Prefect has sent it


def test_file_is_gone_when_the_work_is_done(written: Path, tmp_path: Path) -> None:
    ProgressReader(written).close()
    ProgressReader(tmp_path / "never").close()
    assert not written.exists()
