"""One run's record, from its first stage to its report."""

import contextlib
import logging
import math
import secrets
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from configs.schema import REFERENCE, PipelineConfig
from flows import publish
from flows.environment import environment
from flows.home import Home
from flows.journal import Journal
from flows.locks import is_locked, locked
from flows.tracking import Sender
from tasks.artifact import Artifact
from tasks.benchmark import BenchmarkFacts
from tasks.errors import GateFailed, PipelineError
from tasks.report import Check, Report
from tasks.run_report import CandidateEntry, RunReport, StageEntry
from tasks.select import Exactness, SelectFacts

log = logging.getLogger("gauntlet")

CURRENT: ContextVar["Run"] = ContextVar("run")
FRESH: ContextVar[bool] = ContextVar("fresh", default=False)
CANDIDATE: ContextVar[str | None] = ContextVar("candidate", default=None)


class Run:
    """Collects what the stages report and becomes a `RunReport`."""

    def __init__(self, home: Home, config: PipelineConfig) -> None:
        now = datetime.now(UTC)
        self.home, self.config = home, config
        self.id = f"{now:%Y%m%d-%H%M%S}-{config.name}-{secrets.token_hex(2)}"
        self.folder = home.runs / self.id
        self.journal = Journal(self.folder / "journal.jsonl")
        self.sender = Sender(home, self.folder)
        self.started_at, self._start = now.isoformat(timespec="seconds"), time.monotonic()
        self.environment = environment()
        self.stages: list[StageEntry] = []
        self.candidates: dict[str, CandidateEntry] = {}
        self.at_stage: str | None = None
        self.winner: str | None = None
        self.reason = ""
        self.fresh = FRESH.get()
        self.done: set[str] = set()  # keys of the work that this run has seen to
        self.makers: dict[str, Any] = {}  # digest of an artifact -> Prefect state of the gate that let it pass

    def begin(self) -> None:
        """Open the record."""
        publish.begin(self)
        self.sender.send()

    def overridden(self, check: Check) -> Check:
        """Return the check with the reason for which a person lets it pass, where there is one."""
        for override in self.config.overrides:
            if (override.check, override.candidate) == (check.name, CANDIDATE.get()):
                return check.replace(override=override.reason)
        return check

    def record(self, report: Report[Any]) -> None:
        """Take a stage's report into the record, before anybody judges it."""
        entry = StageEntry.model_validate_json(report.model_dump_json())
        self.stages.append(entry)
        name = entry.candidate
        if name is None:
            publish.stage(self, entry)
            return
        changes: dict[str, Any] = {}
        if "model" in entry.artifacts:
            model = entry.artifacts["model"]
            changes = {"artifact": model, "size_bytes": model.size_bytes}
        if entry.stage == "accuracy":
            changes = {"accuracy": report.facts.accuracy, "sqnr_db": report.facts.sqnr_db}
        self.update(name, **changes)
        publish.stage(self, entry)

    def add_candidate(self, name: str, parent: str | None, **details: Any) -> None:
        """Open the record of a candidate; it counts as accepted until a gate says otherwise."""
        self.candidates[name] = CandidateEntry(name=name, parent=parent, status="accepted", reason="", **details)
        publish.candidate_opened(self, self.candidates[name])

    def update(self, name: str, **changes: Any) -> None:
        """Change what is known of a candidate."""
        self.candidates[name] = self.candidates[name].replace(**changes)

    def rejected_by(self, stage: str, candidate: str) -> bool:
        """Tell whether this stage's gate has rejected the candidate."""
        found = [s for s in self.stages if (s.stage, s.candidate) == (stage, candidate)]
        return any(check.blocks for entry in found for check in entry.checks)

    @property
    def survivors(self) -> dict[str, Artifact]:
        """The models that no gate has dropped, the reference first."""
        return {c.name: c.artifact for c in self.candidates.values() if c.status == "accepted" and c.artifact}

    @property
    def exactness(self) -> dict[str, Exactness]:
        """How near each candidate is to the network that it was made from: the trained one, or a pruned one."""
        pruned = {pruning.name for pruning in self.config.prune}

        def network(name: str) -> str:
            parent = self.candidates[name].parent
            return name if name in pruned or parent is None else network(parent)

        return {
            c.name: Exactness(network=network(c.name), sqnr_db=c.sqnr_db)
            for c in self.candidates.values()
            if c.sqnr_db is not None and not math.isnan(c.sqnr_db)
        }

    def choose(self, race: BenchmarkFacts, choice: SelectFacts) -> None:
        """Take over what the race measured and what was decided."""
        for result in race.results:
            verdict = choice.verdict(result.candidate)
            status = "accepted" if verdict.accepted else "rejected"
            session = race.session(result.candidate)
            self.update(
                result.candidate,
                benchmark=result.rows,
                target=result.target or None,
                session=session and session.options,
                status=status,
                reason=verdict.reason,
            )
        self.winner, self.reason = choice.winner, choice.reason

    def finish(self, error: BaseException | None) -> RunReport:
        """Close the record: the report is on disk before any page is drawn or any server is told."""
        if error is not None:
            self.reason = str(error) if isinstance(error, PipelineError) else f"{type(error).__name__}: {error}"
        report = RunReport(
            run_id=self.id,
            name=self.config.name,
            started_at=self.started_at,
            verdict="failed" if error is not None else "passed",
            stopped_at=self.at_stage if error is not None else None,
            reason=self.reason,
            winner=self.winner if error is None else None,
            seconds=time.monotonic() - self._start,
            environment=self.environment,
            config=self.config.model_dump(mode="json"),
            links=publish.links(self),
            stages=tuple(self.stages),
            candidates=tuple(self.candidates.values()),
        )
        publish.finish(self, report)
        return report


@contextmanager
def recording(config: PipelineConfig) -> Iterator[Run]:
    """Keep the record of the run that happens inside; however it ends, its report is written."""
    logging.getLogger("gauntlet").setLevel(logging.INFO)
    home = Home.find()
    tell_prefect(close_interrupted(home))
    run = Run(home, config)
    with locked(run.folder / "lock"):
        token = CURRENT.set(run)
        try:
            run.begin()
            yield run
        except BaseException as error:
            if not isinstance(error, PipelineError):
                (run.folder / "error.txt").write_text("".join(traceback.format_exception(error)))
            run.finish(error)
            raise
        else:
            run.finish(None)
        finally:
            CURRENT.reset(token)


@contextmanager
def tolerated() -> Iterator[None]:
    """Let the run go on when a stage inside says no, or breaks: only what needs its artifacts is lost."""
    try:
        yield
    except PipelineError as error:
        log.warning("%s: %s", CURRENT.get().at_stage, error)


def close_interrupted(home: Home) -> list[str]:
    """Close the record of runs whose process is gone: they would be called running for ever.

    Returns:
        The ids of their Prefect flow runs.
    """
    flow_runs = []
    for folder in home.run_folders():
        journal = Journal(folder / "journal.jsonl")
        ended = {e["run"] for e in journal if e["op"] == "end"}
        started = [e["run"] for e in journal if e["op"] == "start" and e["run"] not in ended]
        if not started or is_locked(folder / "lock"):
            continue
        for name in started:
            journal.append("tags", run=name, tags={"gate.reason": "interrupted: the process ended without a verdict"})
            journal.append("end", run=name, status="KILLED")
        flow_runs += [e["tags"]["prefect.flow_run_id"] for e in journal if "prefect.flow_run_id" in e.get("tags", {})]
        Sender(home, folder).send()
    return flow_runs


def tell_prefect(flow_runs: list[str]) -> None:
    """Call the flow runs crashed, which nobody else does when both they and their worker were killed."""
    with get_client(sync_client=True) as client:
        for flow_run in flow_runs:
            with contextlib.suppress(ObjectNotFound):  # it may have run on another server
                message = "The process ended without a verdict; a later run found out."
                client.set_flow_run_state(UUID(flow_run), Crashed(message=message), force=True)


@contextmanager
def candidate(name: str, parent: str = REFERENCE) -> Iterator[None]:
    """Run the stages inside for one candidate: when one says no, or breaks, the candidate is dropped, not the run."""
    run = CURRENT.get()
    run.add_candidate(name, parent)
    token = CANDIDATE.set(name)
    try:
        yield
    except PipelineError as error:
        verb = "" if isinstance(error, GateFailed) else f"{run.at_stage} broke: "
        run.update(name, status="rejected", reason=f"{verb}{error}")
        log.info("%s rejected: %s%s", name, verb, error)
    else:
        log.info("%s goes on to the race", name)
    finally:
        CANDIDATE.reset(token)
