"""A run's event log, on disk before anything else is told of an event: one JSON object a line."""

import fcntl
import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from flows.record.home import Home
from flows.record.locks import is_locked
from gauntlet.core.errors import StageError

SAVED = "record.jsonl"
"""The file in a run's folder that has what its report is made of, as a journal, until the report is written."""


class Journal:
    """An append-only file of events. A line that a kill cut short, or that is damaged, is ignored.

    Threads and processes may append at the same time: each event is one whole line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def append(self, op: str, **details: Any) -> None:
        """Write one event, with the time in milliseconds since 1970."""
        event = {"op": op, "time_ms": int(time.time() * 1000), **details}
        line = json.dumps(event, default=str).encode() + b"\n"
        with self.path.open("ab", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            whole = not os.fstat(file.fileno()).st_size or self._ends_whole()
            left = memoryview(line if whole else b"\n" + line)
            while left:  # a single write, but for gigabytes or a full disk
                left = left[file.write(left) :]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        for line in self.path.read_bytes().splitlines():
            with suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and "op" in event:
                    yield event

    def _ends_whole(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(-1, 2)
            return file.read(1) == b"\n"


def records_in_mlflow(start: Mapping[str, Any]) -> bool:
    """Return whether a run, by its first event, is for MLflow: a server was named, or MLflow is installed."""
    return bool(start.get("uri")) or importlib.util.find_spec("mlflow") is not None


def everything_sent(run: Path) -> bool:
    """Return whether MLflow has received, or refused, every event of a run that is for it: `sent.json` counts them."""
    events, count = list(Journal(run / "journal.jsonl")), sent_state(run)["events"]
    start = next((event for event in events if event["op"] == "start"), {})
    return bool(count >= len(events)) or not records_in_mlflow(start)


def sent_state(run: Path) -> dict[str, Any]:
    """Return what `sent.json` says, how far a run was sent and as what; `StageError` where it is damaged."""
    path = run / "sent.json"
    try:
        state: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {"events": 0}
        return dict(state, events=int(state["events"]))
    except (ValueError, TypeError, KeyError) as error:
        raise StageError(f"{path}: damaged. Fix: remove it, and gauntlet sync sends the run once more") from error


def open_records(run: Path) -> list[str]:
    """Return the runs that a journal has opened in MLflow and not closed."""
    events = list(Journal(run / "journal.jsonl"))
    started, ended = ([e["run"] for e in events if e["op"] == op and "run" in e] for op in ("start", "end"))
    return [run for run in started if run not in ended]


def interrupted_runs(home: Home) -> list[Path]:
    """Return the folders of runs whose process is gone and whose record is open."""
    return [folder for folder in home.run_folders() if open_records(folder) and not is_locked(folder / "lock")]


WAITED = "waited"
"""The event of a wait that is over, with when it `began` and `ended` by the clock of its host, in seconds."""


def work_clock(journal: Journal) -> Callable[[], float]:
    """Return a clock, in seconds, that stands still while any work of the run waits for others on its host."""
    return lambda: monotonic() - waited_s(journal)


def waited_s(journal: Journal) -> float:
    """Return for how long at least one work waited. Waits of works side by side may overlap."""
    total, end = 0.0, float("-inf")
    for began, ended in sorted((event["began"], event["ended"]) for event in journal if event["op"] == WAITED):
        total += max(0.0, ended - max(began, end))
        end = max(end, ended)
    return total
