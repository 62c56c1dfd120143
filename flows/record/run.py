"""One run's record, from its first stage to its report."""

import json
import pkgutil
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from prefect.client.schemas.objects import State

from configs.schema import PipelineConfig
from flows.record.environment import environment
from flows.record.home import Home
from flows.record.journal import SAVED, Journal
from gauntlet.core.candidate import Candidate
from gauntlet.core.errors import PipelineError
from gauntlet.core.facts import Facts
from gauntlet.core.report import Check, Report
from gauntlet.core.run_report import CandidateEntry, RunReport, StageEntry

CANCELLED = "cancelled"
"""The reason of a run that a signal ended."""
INTERRUPTED = "interrupted: the process ended without a verdict"
"""The reason of a run that was killed."""

Place = tuple[int, ...]
"""Where something stands in the order of the pipeline's code: places of lines begin with that of the line above."""


class RunListener(Protocol):
    """Is told what happens in a run, each time after the record has it."""

    def opened(self, run_id: str) -> None:
        """The run has started."""

    def stage_recorded(self, report: Report[Any]) -> None:
        """A stage has reported; its gate has not judged it yet."""

    def candidate_opened(self, candidate: CandidateEntry) -> None:
        """A candidate exists; its stages follow."""

    def progressed(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """A stage that is at work has finished a step, for example an epoch."""

    def closed(self, report: RunReport) -> None:
        """The run has ended and its files are written."""


class Run:
    """Collects what the stages report and becomes a `RunReport`.

    Lines that are at work side by side may call it at the same time. What it returns is in the order of the pipeline's
    code, whichever line was first, and its listeners are told one thing at a time.
    """

    def __init__(
        self,
        run_id: str,
        home: Home,
        config: PipelineConfig,
        *,
        fresh: bool = False,
        listeners: tuple[RunListener, ...] = (),
    ) -> None:
        self.id, self.home, self.config, self.fresh, self.listeners = run_id, home, config, fresh, listeners
        self.folder = home.runs / run_id
        self.saved, self.journal = Journal(self.folder / SAVED), Journal(self.folder / "journal.jsonl")
        self.started_at, self._start = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
        self.ended_after_s: float | None = None  # of a run that was killed
        self.environment = environment()
        self.candidates: dict[str, CandidateEntry] = {}
        self.at_stage: str | None = None
        self.winner: str | None = None
        self.reason = ""
        self.metric = "accuracy"
        self.prefect_responds = True  # once it does not, each call would be tried again for a minute
        self.done: set[str] = set()  # keys of the work that this run has finished or found in the cache
        self.producing_gates: dict[str, State[Any]] = {}  # digest of an artifact -> state of the gate that accepted it
        self._entries: list[tuple[Place, StageEntry]] = []
        self._places: dict[str, Place] = {}  # by candidate
        self._lock = threading.RLock()
        self._key_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def open(self) -> None:
        """Open the record."""
        config = self.config.model_dump(mode="json")
        self.saved.append("opened", started_at=self.started_at, environment=self.environment, config=config)
        for listener in self.listeners:
            listener.opened(self.id)

    def overridden(self, check: Check, candidate: str | None) -> Check:
        """Return the check with the reason why a person lets it pass, where the configuration overrides it."""
        for override in self.config.overrides:
            if (override.check, override.candidate) == (check.name, candidate):
                return check.replace(override=override.reason)
        return check

    @property
    def stages(self) -> list[StageEntry]:
        """The stages that have reported."""
        with self._lock:
            return [entry for _, entry in sorted(self._entries, key=lambda each: each[0])]

    @contextmanager
    def only(self, key: str) -> Iterator[None]:
        """Let one line at a time do the work of a key: the next one finds its result."""
        with self._lock:
            lock = self._key_locks[key]
        with lock:
            yield

    def record(self, report: Report[Any], place: Place = ()) -> None:
        """Add a stage's report to the record, before its gate judges it."""
        entry = StageEntry.of(report)
        with self._lock:
            self.take_stage(place, entry)
            for name, changes in report.facts.candidate_changes(self.candidates).items():
                self._change(name, **changes)
            outcome = report.facts.outcome()
            self.metric, self.reason = outcome.metric or self.metric, outcome.reason or self.reason
            self.winner = outcome.winner or self.winner
            so_far = {"metric": self.metric, "winner": self.winner, "reason": self.reason}
            facts = f"{type(report.facts).__module__}:{type(report.facts).__qualname__}"
            self.saved.append("stage", place=place, entry=entry.model_dump(mode="json"), facts=facts, **so_far)
            for listener in self.listeners:
                listener.stage_recorded(report)

    def progress(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Pass on the metrics of one step of a stage that is at work."""
        with self._lock:
            for listener in self.listeners:
                listener.progressed(stage, step, metrics)

    def record_candidate(self, candidate: Candidate, place: Place = ()) -> None:
        """Record a candidate as it stands; one that the record does not have yet is opened."""
        with self._lock:
            name, model, known = candidate.name, candidate.model, candidate.name in self.candidates
            if not known:
                entry = CandidateEntry(name=name, parent=candidate.parent, status="not decided", reason="")
                self.take_candidate(place, entry)
            self._change(
                name,
                status=candidate.status,
                reason=candidate.reason,
                artifact=model,
                size_bytes=model.size_bytes if model else None,
                accuracy=candidate.accuracy,
                sqnr_db=candidate.sqnr_db,
                differences=candidate.differences,
            )
            for listener in () if known else self.listeners:
                listener.candidate_opened(self.candidates[name])

    def _change(self, name: str, **changes: Any) -> None:
        entry = self.candidates[name] = self.candidates[name].replace(**changes)
        self.saved.append("candidate", place=self._places[name], entry=entry.model_dump(mode="json"))

    def take_stage(self, place: Place, entry: StageEntry) -> None:
        """Add a stage's entry at its place."""
        self._entries.append((place, entry))

    def take_candidate(self, place: Place, entry: CandidateEntry) -> None:
        """Add a candidate's entry at its place, or replace it."""
        self._places[entry.name] = place
        known = {**self.candidates, entry.name: entry}
        self.candidates = {each: known[each] for each in sorted(known, key=self._places.__getitem__)}

    def report(self, error: Exception | None = None, links: dict[str, str] | None = None) -> RunReport:
        """Return the report of the run as it stands, with links to pages of other tools by title."""
        if error is not None:
            self.reason = str(error) if isinstance(error, PipelineError) else f"{type(error).__name__}: {error}"
            for undecided in [c.name for c in self.candidates.values() if c.status == "not decided"]:
                self._change(undecided, reason="the run ended before the selection")
        return RunReport(
            run_id=self.id,
            name=self.config.name,
            started_at=self.started_at,
            verdict="passed" if error is None else "cancelled" if self.reason == CANCELLED else "failed",
            stopped_at=self.at_stage if error is not None else None,
            reason=self.reason,
            winner=self.winner if error is None else None,
            metric=self.metric,
            seconds=time.monotonic() - self._start if self.ended_after_s is None else self.ended_after_s,
            environment=self.environment,
            config=self.config.model_dump(mode="json"),
            links=links or {},
            stages=tuple(self.stages),
            candidates=tuple(self.candidates.values()),
        )

    def close(self, report: RunReport) -> None:
        """Close the record; the report's files are written, so what they are made of need not stay."""
        for listener in self.listeners:
            listener.closed(report)
        self.saved.path.unlink(missing_ok=True)


def restore_run(home: Home, folder: Path) -> Run | None:
    """Return a run as it stood when it was killed; None where it saved nothing.

    Raises:
        ValueError: when another release saved it, whose fields differ.
    """
    events = list(Journal(folder / SAVED))
    if not events or events[0]["op"] != "opened":
        return None
    run = Run(folder.name, home, PipelineConfig.model_validate(events[0]["config"]))
    run.started_at, run.environment = events[0]["started_at"], events[0]["environment"]
    for event in events:
        match event["op"]:
            case "stage":
                entry = StageEntry.model_validate(event["entry"])
                run.take_stage(tuple(event["place"]), _with_facts(entry, event["facts"]))
                run.metric, run.winner, run.reason = event["metric"], event["winner"], event["reason"]
            case "candidate":
                run.take_candidate(tuple(event["place"]), CandidateEntry.model_validate(event["entry"]))
    run.at_stage = _stopped_at(folder)
    last_ms = max(int(event["time_ms"]) for name in (SAVED, "journal.jsonl") for event in Journal(folder / name))
    run.ended_after_s = (last_ms - events[0]["time_ms"]) / 1000
    return run


def _with_facts(entry: StageEntry, name: str) -> StageEntry:
    """Return the entry with its facts as an object of the class of that name; as it is where the class is gone."""
    try:
        kind: type[Facts] = pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return entry
    return entry.with_facts(kind.model_validate_json(json.dumps(entry.facts)))


def _stopped_at(folder: Path) -> str | None:
    """Return the stage that was at work, or else the last one that was."""
    events = list(Journal(folder / "journal.jsonl"))
    finished = {event["key"] for event in events if event["op"] == "work_finished"}
    started = [event for event in events if event["op"] == "work_started"]
    at_work = [event for event in started if event["key"] not in finished]
    return str((at_work or started)[-1]["stage"]) if started else None
