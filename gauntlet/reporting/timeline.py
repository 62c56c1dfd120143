"""What happened, in the order in which a reader asks: did it pass, who won, what was rejected, where did it stop."""

from dataclasses import dataclass
from pathlib import Path

from gauntlet.core.report import Check
from gauntlet.core.run_report import BenchmarkRow, CandidateEntry, RunReport, StageEntry
from gauntlet.reporting.text_format import milliseconds, speedup

STAGE_ORDER = (
    "data", "train", "evaluate", "export", "structure", "numerics",
    "optimize", "prune", "calibrate", "quantize", "repair", "accuracy", "portability", "benchmark", "explain", "select",
)  # fmt: skip
"""The stages in their order, to tell what a stopped run did not reach. A stage that is not named here still shows."""

JUDGES = ("structure", "numerics", "accuracy", "portability")
"""The stages that judge a candidate. A reader wants all that make candidates before all that judge them."""

MARKS = {"passed": "✓", "failed": "✗", "rejected": "✗", "cached": "↺", "not run": "○"}
MARKS |= {"warning": "!", "overridden": "≈"}
SEVEREST_FIRST = ("failed", "warning", "overridden", "passed")


@dataclass(frozen=True)
class TimelineStep:
    """One place in the pipeline: a stage of the main line, or the same stage of all candidates together."""

    stage: str
    state: str
    seconds: float | None
    entries: tuple[StageEntry, ...] = ()
    stopped_here: bool = False

    @property
    def note(self) -> str:
        """What else is to be said, in a few words."""
        if self.state == "not run":
            return ""
        if not self.entries:
            return "left no report"
        rejected = sum(1 for entry in self.entries if _blocked(entry))
        of_candidates = self.entries[0].candidate is not None
        states = [state_of(check) for entry in self.entries for check in entry.checks]
        parts = [_count(len(self.entries), "candidate")] if of_candidates else []
        parts += [f"{rejected} rejected"] if of_candidates and rejected else []
        parts += [_count(states.count("warning"), "warning")] if "warning" in states else []
        parts += ["overridden"] if "overridden" in states else []
        return ", ".join(parts)


@dataclass(frozen=True)
class CheckOutcome:
    """One check, where it was made, and what became of it."""

    stage: str
    candidate: str | None
    check: Check
    state: str


def state_of(check: Check) -> str:
    """Name what became of a check."""
    if check.passed:
        return "passed"
    if check.override is not None:
        return "overridden"
    return "failed" if check.severity == "error" else "warning"


def timeline(report: RunReport) -> list[TimelineStep]:
    """Return the pipeline as it ran, and after a stop the stages that it did not reach."""
    groups: dict[tuple[str, bool], list[StageEntry]] = {}
    for entry in report.stages:
        groups.setdefault((entry.stage, entry.candidate is None), []).append(entry)
    stop = report.stopped_at
    taken = [_step(key[0], tuple(groups[key]), stop) for key in _in_order(list(groups))]
    seen = {stage for stage, _ in groups}
    if stop is not None and stop not in seen:
        taken.append(TimelineStep(stop, "failed", None, stopped_here=True))
        seen.add(stop)
    ahead = STAGE_ORDER[STAGE_ORDER.index(stop) + 1 :] if stop in STAGE_ORDER else ()
    return taken + [TimelineStep(stage, "not run", None) for stage in ahead if stage not in seen]


def gates(report: RunReport) -> list[CheckOutcome]:
    """Return every check, the failed ones first."""
    found = [CheckOutcome(e.stage, e.candidate, check, state_of(check)) for e in report.stages for check in e.checks]
    return sorted(found, key=lambda gate: SEVEREST_FIRST.index(gate.state))


def blocking_checks(report: RunReport) -> list[CheckOutcome]:
    """Return the checks that ended a failed run: those of its main line, or else those that left no candidate."""
    if report.verdict == "passed":
        return []
    failed = [gate for gate in gates(report) if gate.state == "failed"]
    return [gate for gate in failed if gate.candidate is None] or failed


def told_by(gates: list[CheckOutcome], reason: str) -> bool:
    """Tell whether a run's reason says no more than these checks do."""
    lines = {line.strip() for line in reason.splitlines() if line.strip()}
    return bool(lines) and lines <= {line.strip() for g in gates for line in str(g.check).splitlines()}


def winner(report: RunReport) -> CandidateEntry | None:
    """Return the winner's entry."""
    return next((c for c in report.candidates if c.name == report.winner), None)


def model_file(report: RunReport, store: Path) -> Path | None:
    """Return the winner's file in the artifact store."""
    best = winner(report)
    return None if best is None or best.artifact is None else store / best.artifact.path


def reference(report: RunReport) -> CandidateEntry | None:
    """Return the entry that the others were raced against: the one marked so, or else the first without a parent."""
    for candidate in report.candidates:
        if any(row.verdict == "reference" for row in candidate.benchmark):
            return candidate
    return next((c for c in report.candidates if c.parent is None), None)


def ordered_candidates(report: RunReport) -> list[CandidateEntry]:
    """Return the candidates: the winner, the other accepted ones, the rejected ones."""
    return sorted(report.candidates, key=lambda c: (c.name != report.winner, c.status == "rejected"))


def deciding_row(report: RunReport, candidate: CandidateEntry) -> BenchmarkRow | None:
    """Return the measurement that decides: the one at the batch size that the configuration names, or the first."""
    chosen = report.config.get("select")
    batch = chosen.get("batch") if isinstance(chosen, dict) else None
    return next((row for row in candidate.benchmark if row.batch == batch), next(iter(candidate.benchmark), None))


def own_rows(candidate: CandidateEntry) -> dict[int, BenchmarkRow]:
    """Return a candidate's measurements by batch size; of several targets, the first is its own."""
    return {row.batch: row for row in reversed(candidate.benchmark)}


def batch_sizes(report: RunReport) -> list[int]:
    """Return every batch size that was measured."""
    return sorted({row.batch for candidate in report.candidates for row in candidate.benchmark})


def remarks(report: RunReport, candidate: CandidateEntry, shown: list[int]) -> list[str]:
    """Return what is to be said of a candidate's measurements beside its numbers at the batch sizes shown.

    Of the measurement that decides, the candidate's reason says it.
    """
    own, deciding, told = own_rows(candidate), deciding_row(report, candidate), []
    for row in candidate.benchmark:
        numbers = () if own[row.batch] is row and row.batch in shown else (measured(row),)
        events = () if row is deciding else _events(row)
        if numbers or events:
            told.append(f"Batch {row.batch} on {row.target}: {', '.join((*numbers, *events))}.")
    return told


def measured(row: BenchmarkRow) -> str:
    """Write one measurement."""
    if row.verdict == "reference":
        return f"{milliseconds(row.median_ms)}, the reference"
    ratio = speedup(row.speedup, row.speedup_low, row.speedup_high)
    return f"{milliseconds(row.median_ms)}, {ratio}, {row.verdict}"


def _events(row: BenchmarkRow) -> tuple[str, ...]:
    dropped = f"dropped after round {row.stopped_after_round}, {row.stopped_as} than {row.stopped_for}"
    more = f"about {row.more_rounds} more rounds would probably resolve it"
    return (dropped,) * (row.stopped_as is not None) + (more,) * (row.more_rounds is not None)


def _in_order(keys: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    of_candidates = [key for key in keys if not key[1]]
    of_candidates.sort(key=lambda key: JUDGES.index(key[0]) if key[0] in JUDGES else -1)
    queue = iter(of_candidates)
    return [key if key[1] else next(queue) for key in keys]


def _step(stage: str, entries: tuple[StageEntry, ...], stop: str | None) -> TimelineStep:
    blocked = [_blocked(entry) for entry in entries]
    stopped_here = stage == stop and (entries[0].candidate is None or all(blocked))
    if all(blocked) or stopped_here:
        state = "rejected" if entries[0].candidate is not None and not stopped_here else "failed"
    else:
        state = "cached" if all(entry.cached for entry in entries) else "passed"
    return TimelineStep(stage, state, sum(entry.seconds for entry in entries), entries, stopped_here)


def _blocked(entry: StageEntry) -> bool:
    return any(check.blocks for check in entry.checks)


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
