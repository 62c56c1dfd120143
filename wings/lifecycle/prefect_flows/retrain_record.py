"""The retrainings of a registered model: one at a time, each once, and one that was killed goes on.

A retraining's folder has the samples that it began with, `task.json` with all else that it needs, and, when it has
ended, `retrain.json` with what came of it and its page.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from flows.record.home import Home
from flows.record.journal import Journal
from flows.record.locks import locked
from flows.tracking.sender import PARENT, Sender
from gauntlet.core.artifact import fsync, sha256_of, write_atomically
from gauntlet.core.errors import StageError
from wings.lifecycle.library.monitoring.labeled_requests import LabeledRequests
from wings.lifecycle.library.promotion.retrain_facts import RetrainResult, RetrainTask
from wings.lifecycle.library.promotion.retrain_page import render_retraining

TASK, RESULT, PAGE = "task.json", "retrain.json", "retrain.html"
TRAIN, TEST = "train.npz", "test.npz"
DIGITS = 12
Kept = TypeVar("Kept", bound=RetrainTask)


class NothingToDoError(Exception):
    """A retraining is not needed, or runs already; the message says why."""


class RetrainRecord:
    """One retraining's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def task(self) -> RetrainTask:
        """What it has begun with."""
        return self._read(TASK, RetrainTask)

    @property
    def result(self) -> RetrainResult | None:
        """What came of it; None where it was killed, or still runs."""
        return self._read(RESULT, RetrainResult) if (self.folder / RESULT).exists() else None

    def _read(self, name: str, kind: type[Kept]) -> Kept:
        try:
            return kind.model_validate_json((self.folder / name).read_bytes())
        except ValidationError as error:
            raise StageError(f"{self.folder / name}: damaged. Fix: remove {self.folder}, and retrain again") from error

    @property
    def is_intact(self) -> bool:
        """Whether the samples are those that it began with, whose digest is in the folder's name."""
        files = [self.train, self.test]
        return all(file.is_file() for file in files) and self.folder.name.endswith(f"-{sha256_of(files)[:DIGITS]}")

    def require_intact(self) -> None:
        """Raise `StageError` where the samples are others by now."""
        if not self.is_intact:
            what = "its samples were changed or removed since it began"
            raise StageError(f"{self.folder}: {what}. Fix: retrain again, which reads them from the request log")

    @property
    def train(self) -> Path:
        """The samples to train on."""
        return self.folder / TRAIN

    @property
    def test(self) -> Path:
        """The samples that were held back."""
        return self.folder / TEST

    @property
    def page(self) -> Path:
        """The result, drawn."""
        return self.folder / PAGE

    def begin(self, task: RetrainTask) -> None:
        """Note what it begins with; a result that it had before no longer counts."""
        (self.folder / RESULT).unlink(missing_ok=True)
        self.save(task)

    def save(self, task: RetrainTask) -> None:
        """Note what it has begun with, or how far it came."""
        write_atomically(self.folder / TASK, task.model_dump_json(indent=1))

    def draw(self, result: RetrainResult) -> None:
        """Write the page."""
        write_atomically(self.page, render_retraining(result))

    def close(self, result: RetrainResult) -> None:
        """Note what came of it: from now on it is done."""
        write_atomically(self.folder / RESULT, result.model_dump_json(indent=1))


class RetrainRecords:
    """All retrainings of one registered model."""

    def __init__(self, home: Home, name: str) -> None:
        self.folder = home.root / "retrains" / name

    def all(self) -> list[RetrainRecord]:
        """Return those that have begun."""
        return [RetrainRecord(path.parent) for path in sorted(self.folder.glob(f"*/{TASK}"))]

    def unfinished(self) -> RetrainRecord | None:
        """Return the one that was killed, if there is one."""
        return next((record for record in self.all() if record.result is None), None)

    def of_alarm(self, alarm: str) -> RetrainResult | None:
        """Return what came of the retraining that an alarm has started."""
        results = (record.result for record in self.all())
        return next((result for result in results if result is not None and result.alarm == alarm), None)

    def add(self, samples: LabeledRequests, prefix: str) -> RetrainRecord:
        """Return the record for these samples, in which they lie; its folder begins with the prefix."""
        incoming = self.folder / ".incoming"
        shutil.rmtree(incoming, ignore_errors=True)
        incoming.mkdir(parents=True)
        files = [incoming / TRAIN, incoming / TEST]
        samples.save(files[0], ~samples.held_back)
        samples.save(files[1], samples.held_back)
        for file in files:
            fsync(file)
        record = RetrainRecord(self.folder / f"{prefix}-{sha256_of(files)[:DIGITS]}")
        if not record.is_intact:
            shutil.rmtree(record.folder, ignore_errors=True)
            incoming.rename(record.folder)
        shutil.rmtree(incoming, ignore_errors=True)
        return record


@contextmanager
def retrain_records(home: Home, name: str) -> Iterator[RetrainRecords]:
    """Hold a model's retrainings for this process; `NothingToDoError` where another process does one."""

    def refuse() -> None:
        raise NothingToDoError(f"{name}: another process is retraining it already")

    with locked(home.locks / f"retrain-{name}", on_wait=refuse):
        yield RetrainRecords(home, name)


OUTCOME = "retrain.outcome"


def record_in_mlflow(home: Home, result: RetrainResult, page: Path) -> None:
    """Add tags, metrics and the page to the challenger's run, once; what cannot be sent now, `gauntlet sync` sends."""
    folder = home.runs / str(result.run_id)
    journal = Journal(folder / "journal.jsonl")
    if not any(event["op"] == "tags" and OUTCOME in event["tags"] for event in journal):
        # The time is the retraining's: a point that a kill lets us send twice is the same point.
        time_ms = int(1000 * datetime.fromisoformat(result.started_at).timestamp())
        journal.append("file", run=PARENT, path=str(page.relative_to(home.root)), folder="retraining")
        journal.append("metrics", run=PARENT, metrics=_metrics(result), step=0, time_ms=time_ms)
        tags = {OUTCOME: result.outcome, "retrain.reason": result.reason[:5000], "retrain.id": result.id}
        tags |= {"retrain.champion": result.champion, "retrain.alarm": result.alarm}
        journal.append("tags", run=PARENT, tags=tags)
    Sender(home, folder).send()


def _metrics(result: RetrainResult) -> dict[str, float]:
    """Return the numbers that the decision rests on."""
    counts = {"retrain.trained_samples": float(result.trained), "retrain.held_back_samples": float(result.held_back)}
    if result.replay is None or result.replay.gain is None:
        return counts
    new, old = result.replay.gain, result.replay.change
    return counts | {
        "retrain.new.accuracy": new.after,
        "retrain.new.before": new.before,
        "retrain.new.gain_low": -new.high,
        "retrain.old.drop": old.drop,
        "retrain.old.high": old.high,
    }
