"""One run's record, from its first stage to its report."""

import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Protocol

from prefect.client.schemas.objects import State

from configs.schema import PipelineConfig
from flows.record.environment import environment
from flows.record.home import Home
from flows.record.journal import Journal
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import PipelineError
from gauntlet.core.report import Check, Report
from gauntlet.core.run_report import CandidateEntry, RunReport, StageEntry
from tasks.accuracy import AccuracyFacts
from tasks.benchmark.facts import BenchmarkFacts
from tasks.confirm import ConfirmFacts
from tasks.duel import DuelFacts
from tasks.evaluate import EvaluateFacts
from tasks.select import Fidelity, SelectFacts

CANCELLED = "cancelled"
"""The reason of a run that a signal ended."""

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
        self.journal = Journal(self.folder / "journal.jsonl")
        self.started_at, self._start = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
        self.environment = environment()
        self.candidates: dict[str, CandidateEntry] = {}
        self.at_stage: str | None = None
        self.race: BenchmarkFacts | None = None
        self.winner: str | None = None
        self.reason = ""
        self.metric = "accuracy"
        self.done: set[str] = set()  # keys of the work that this run has finished or found in the cache
        self.producing_gates: dict[str, State[Any]] = {}  # digest of an artifact -> state of the gate that accepted it
        self._entries: list[tuple[Place, StageEntry]] = []
        self._places: dict[str, Place] = {}  # by candidate
        self._lock = threading.RLock()
        self._key_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def open(self) -> None:
        """Open the record."""
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
        entry = StageEntry.model_validate_json(report.model_dump_json())
        with self._lock:
            self._entries.append((place, entry))
            if isinstance(report.facts, EvaluateFacts | AccuracyFacts):
                self.metric = report.facts.metric
            if report.candidate is not None:
                self.update(report.candidate, **_candidate_changes(report))
            match report.facts:
                case BenchmarkFacts() as facts:
                    self.race = facts
                case SelectFacts() as facts:
                    self._record_selection(facts)
                case ConfirmFacts() as facts:
                    self._record_confirmation(facts)
                case DuelFacts() as facts:
                    self._record_duel(facts)
            for listener in self.listeners:
                listener.stage_recorded(report)

    def progress(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Pass on the metrics of one step of a stage that is at work."""
        with self._lock:
            for listener in self.listeners:
                listener.progressed(stage, step, metrics)

    def add_candidate(
        self,
        name: str,
        parent: str | None,
        place: Place = (),
        *,
        model: Artifact | None = None,
        accuracy: float | None = None,
    ) -> None:
        """Open the record of a candidate; it counts as accepted until a gate rejects it."""
        candidate = CandidateEntry(
            name=name,
            parent=parent,
            status="accepted",
            reason="",
            artifact=model,
            size_bytes=model.size_bytes if model else None,
            accuracy=accuracy,
        )
        with self._lock:
            self._places[name] = place
            known = {**self.candidates, name: candidate}
            self.candidates = {each: known[each] for each in sorted(known, key=self._places.__getitem__)}
            for listener in self.listeners:
                listener.candidate_opened(candidate)

    def update(self, name: str, **changes: Any) -> None:
        """Change what is known of a candidate."""
        with self._lock:
            self.candidates[name] = self.candidates[name].replace(**changes)

    def rejected_by(self, stage: str, candidate: str | None) -> bool:
        """Tell whether the stage's gate has rejected the candidate."""
        found = [s for s in self.stages if (s.stage, s.candidate) == (stage, candidate)]
        return any(check.blocks for entry in found for check in entry.checks)

    @property
    def accepted_models(self) -> dict[str, Artifact]:
        """The models that no gate has rejected, by candidate; the reference comes first."""
        return {c.name: c.artifact for c in self.candidates.values() if c.status == "accepted" and c.artifact}

    @property
    def fidelities(self) -> dict[str, Fidelity]:
        """How close each candidate is to the network that it was made from: the trained one, or a pruned one."""
        return {
            c.name: Fidelity(network=self._network(c.name), sqnr_db=c.sqnr_db)
            for c in self.candidates.values()
            if c.sqnr_db is not None and not math.isnan(c.sqnr_db)
        }

    @property
    def own_goldens(self) -> dict[str, Artifact]:
        """The outputs of the pruned network that each accepted candidate was made from; others have none."""
        goldens = {s.candidate: s.artifacts["golden"] for s in self.stages if s.candidate and "golden" in s.artifacts}
        networks = {name: self._network(name) for name in self.accepted_models}
        return {name: goldens[network] for name, network in networks.items() if network in goldens}

    def _network(self, candidate: str) -> str:
        """Return the candidate whose network this one was made from: a pruned one, or the reference."""
        parent = self.candidates[candidate].parent
        pruned = any(pruning.name == candidate for pruning in self.config.prune)
        return candidate if pruned or parent is None else self._network(parent)

    def _record_selection(self, selection: SelectFacts) -> None:
        """Take over what the race measured and what was decided."""
        race = self.race
        if race is None:
            raise ValueError("a selection was recorded without a race")
        for result in race.results:
            verdict = selection.decision(result.candidate)
            session = race.session(result.candidate)
            self.update(
                result.candidate,
                benchmark=result.rows,
                target=result.target or None,
                session=session and session.options,
                status="accepted" if verdict.accepted else "rejected",
                reason=verdict.reason,
            )
        self.winner, self.reason = selection.winner, selection.reason

    def _record_confirmation(self, final: ConfirmFacts) -> None:
        """Take over the second measurement of the selected candidate, and the winner that follows from it."""
        if final.race is not None:
            entry = self.candidates[final.candidate]
            accepted = final.confirmed or entry.parent is None
            self.update(
                entry.name,
                benchmark=final.rows + tuple(row for row in entry.benchmark if row.target != entry.target),
                status="accepted" if accepted else "rejected",
                reason=final.measured if accepted else f"{final.objection}: {final.measured}",
            )
        self.winner, self.reason = final.winner, final.reason

    def _record_duel(self, facts: DuelFacts) -> None:
        """Take over what was measured from images to outputs, and the winner that follows from it."""
        final = facts.final
        self.update(
            facts.candidate,
            benchmark=facts.rows,
            target=self.candidates[facts.opponent].target,
            session=self.candidates[facts.opponent].session,
            status="accepted" if facts.won else "rejected",
            reason=facts.reason,
        )
        self.winner, self.reason = final.winner, final.reason

    def report(self, error: Exception | None = None, links: dict[str, str] | None = None) -> RunReport:
        """Return the report of the run as it stands, with links to pages of other tools by title."""
        if error is not None:
            self.reason = str(error) if isinstance(error, PipelineError) else f"{type(error).__name__}: {error}"
        return RunReport(
            run_id=self.id,
            name=self.config.name,
            started_at=self.started_at,
            verdict="failed" if error is not None else "passed",
            stopped_at=self.at_stage if error is not None else None,
            reason=self.reason,
            winner=self.winner if error is None else None,
            metric=self.metric,
            seconds=time.monotonic() - self._start,
            environment=self.environment,
            config=self.config.model_dump(mode="json"),
            links=links or {},
            stages=tuple(self.stages),
            candidates=tuple(self.candidates.values()),
        )

    def close(self, report: RunReport) -> None:
        """Close the record; the report's files are written."""
        for listener in self.listeners:
            listener.closed(report)


def _candidate_changes(report: Report[Any]) -> dict[str, Any]:
    """Return what a stage's report changes in its candidate's entry."""
    changes: dict[str, Any] = {}
    if "model" in report.artifacts:
        model = report.artifacts["model"]
        changes |= {"artifact": model, "size_bytes": model.size_bytes}
    if isinstance(report.facts, AccuracyFacts):
        changes |= {"accuracy": report.facts.accuracy, "sqnr_db": report.facts.sqnr_db}
    return changes
