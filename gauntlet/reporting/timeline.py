"""What happened in a run: its stages, checks, candidates, and where it stopped."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gauntlet.core.artifact import Artifact
from gauntlet.core.report import Check
from gauntlet.core.run_report import BenchmarkRow, CandidateEntry, RunReport, StageEntry
from gauntlet.reporting.text_format import counted, milliseconds, speedup

MARKS = {"passed": "✓", "failed": "✗", "rejected": "✗", "cached": "↺", "cancelled": "○"}
MARKS |= {"warning": "!", "overridden": "≈", "accepted": "✓", "not decided": "○", "not tried": "○", "unchanged": "="}
STATUSES = ("accepted", "unchanged", "not tried", "not decided", "rejected")
SEVEREST_FIRST = ("failed", "warning", "overridden", "rejected", "passed")


@dataclass(frozen=True)
class TimelineStep:
    """A stage of the main line, or the same stage of all candidates together."""

    stage: str
    state: str
    seconds: float | None
    entries: tuple[StageEntry, ...] = ()

    @property
    def note(self) -> str:
        """Number of candidates, rejections and warnings, and the stage's own news, in a few words."""
        if not self.entries:
            return "left no report"
        parts = []
        if self.entries[0].candidate is not None:
            rejected = sum(map(_blocked, self.entries))
            parts = [counted(len(self.entries), "candidate"), *([f"{rejected} rejected"] if rejected else [])]
        states = [state_of(check) for entry in self.entries for check in entry.checks]
        parts += [counted(states.count("warning"), "warning")] if "warning" in states else []
        news = [entry.known.headline() for entry in self.entries if entry.known is not None]
        return ", ".join([*parts, *(["overridden"] if "overridden" in states else []), *filter(None, news)])


@dataclass(frozen=True)
class CheckOutcome:
    """A check, its stage and candidate, and its outcome."""

    stage: str
    candidate: str | None
    check: Check
    state: str


def state_of(check: Check, candidate: str | None = None) -> str:
    """Return the outcome of a check: passed, overridden, failed or warning; rejected where it rejects a candidate."""
    if check.passed:
        return "passed"
    if check.override is not None:
        return "overridden"
    if check.severity == "warning":
        return "warning"
    return "failed" if candidate is None else "rejected"


def timeline(report: RunReport) -> list[TimelineStep]:
    """Return the stages in the order in which they ran, and the one that a run stopped at without a report."""
    groups: dict[tuple[str, bool], list[StageEntry]] = {}
    for entry in report.stages:
        groups.setdefault((entry.stage, entry.candidate is None), []).append(entry)
    stop = report.stopped_at
    steps = [_step(stage, tuple(entries), stop) for (stage, _), entries in groups.items()]
    if stop is not None and stop not in {stage for stage, _ in groups}:
        state = "cancelled" if report.verdict == "cancelled" else "failed"
        steps.append(TimelineStep(stop, state, None))
    return steps


def gates(report: RunReport) -> list[CheckOutcome]:
    """Return every check, those that failed the run first."""
    outcomes = [
        CheckOutcome(e.stage, e.candidate, check, state_of(check, e.candidate))
        for e in report.stages
        for check in e.checks
    ]
    return sorted(outcomes, key=lambda gate: SEVEREST_FIRST.index(gate.state))


def blocking_checks(report: RunReport) -> list[CheckOutcome]:
    """Return the checks that ended a failed run: those of its main line, or else those of its candidates."""
    if report.verdict != "failed":
        return []
    failed = [gate for gate in gates(report) if gate.check.blocks]
    return [gate for gate in failed if gate.candidate is None] or failed


def own_reason(report: RunReport) -> str:
    """Return the run's reason; empty where the verdict, or the checks that ended the run, say the same."""
    lines = {line.strip() for line in report.reason.splitlines() if line.strip()}
    shown = {line.strip() for gate in blocking_checks(report) for line in str(gate.check).splitlines()}
    return "" if lines <= shown | {report.verdict} else report.reason


def winner(report: RunReport) -> CandidateEntry | None:
    """Return the winner's entry."""
    return next((c for c in report.candidates if c.name == report.winner), None)


def differences(report: RunReport) -> str:
    """Return how the winner's predictions differ from the FP32 model's, in words; empty where labels tell more."""
    best = winner(report)
    return best.differences if best is not None and best.accuracy is None else ""


def model_file(report: RunReport, store: Path) -> Path | None:
    """Return the winner's file in the artifact store."""
    best = winner(report)
    return None if best is None or best.artifact is None else store / best.artifact.path


def bundle_file(report: RunReport, store: Path) -> Path | None:
    """Return the winner's bundle in the artifact store; None for a run that has not packaged one."""
    artifact = bundle_artifact(report)
    return None if artifact is None else store / artifact.path


def bundle_artifact(report: RunReport) -> Artifact | None:
    """Return the winner's bundle as it was packaged; None for a run that has not packaged one."""
    entry = report.stage("package") if report.winner is not None else None
    return entry.artifacts.get("bundle") if entry is not None else None


def bundle_uses(report: RunReport) -> tuple[str, ...]:
    """Return the commands with which a run's bundle is copied and used."""
    name = f"{report.name}.zip"
    return f"gauntlet bundle {report.run_id}", f"gauntlet verify {name}", f"gauntlet predict {name} INPUT..."


def reference(report: RunReport) -> CandidateEntry | None:
    """Return the reference of the race: the entry with that verdict, or else the first without a parent."""
    raced = (c for c in report.candidates if any(row.verdict == "reference" for row in c.side_by_side))
    return next(raced, None) or next((c for c in report.candidates if c.parent is None), None)


def reference_rows(report: RunReport) -> dict[int, BenchmarkRow]:
    """Return the rows that speed-ups are over, by batch size: those of the reference on its target."""
    base = reference(report)
    return {row.batch: row for row in (base.side_by_side if base else ()) if row.verdict == "reference"}


def ordered_candidates(report: RunReport) -> list[CandidateEntry]:
    """Return the candidates: the winner, the other accepted ones, those not raced, the rejected ones."""
    return sorted(report.candidates, key=lambda c: (c.name != report.winner, STATUSES.index(c.status)))


def deciding_row(report: RunReport, rows: Sequence[BenchmarkRow]) -> BenchmarkRow | None:
    """Return a candidate's row at the batch size that decided, before a selection at the configured one; or the first.

    `rows` are those of the race of all candidates (`side_by_side`), or with the winner's confirmation (`benchmark`).
    """
    config = report.config.get("select")
    configured = config.get("batch") if isinstance(config, dict) else None
    batch = report.outcome.batch or configured
    return next((row for row in rows if row.batch == batch), next(iter(rows), None))


def own_rows(candidate: CandidateEntry) -> dict[int, BenchmarkRow]:
    """Return a candidate's rows by batch size, on its first target."""
    return {row.batch: row for row in reversed(candidate.side_by_side)}


def batch_sizes(report: RunReport) -> list[int]:
    """Return every batch size that was measured."""
    return sorted({row.batch for candidate in report.candidates for row in candidate.side_by_side})


def remarks(report: RunReport, candidate: CandidateEntry, batches: list[int]) -> list[str]:
    """Return the remarks on a candidate's rows: the numbers not shown, early stops and missing rounds.

    The candidate's reason already has those of the deciding row.
    """
    own, deciding, texts = own_rows(candidate), deciding_row(report, candidate.side_by_side), []
    for row in candidate.side_by_side:
        parts = [] if own[row.batch] is row and row.batch in batches else [measured(row)]
        parts += [] if row is deciding else _events(row)
        if parts:
            texts.append(f"Batch {row.batch} on {row.target}: {', '.join(parts)}.")
    return texts


def measured(row: BenchmarkRow) -> str:
    """Return the numbers of a row as text."""
    if row.verdict == "reference":
        return f"{milliseconds(row.median_ms)}, the reference"
    verdict = "" if row.stopped_as else f", {row.verdict}"  # of a dropped one, it is on another comparison
    return f"{milliseconds(row.median_ms)}, {speedup_of(row)}{verdict}"


def speedup_of(row: BenchmarkRow) -> str:
    """Return the speed-up of a row with its interval, after `~` in a disturbed race; 1.00x for the reference."""
    if row.verdict == "reference":
        return "1.00x"
    return row.mark + speedup(row.speedup, row.speedup_low, row.speedup_high)


def _events(row: BenchmarkRow) -> list[str]:
    stop = f"dropped after round {row.stopped_after_round}, {row.stopped_as} than {row.stopped_for}"
    more = f"about {row.more_rounds} more rounds would probably resolve it"
    return [*([stop] if row.stopped_as is not None else []), *([more] if row.more_rounds is not None else [])]


def _step(stage: str, entries: tuple[StageEntry, ...], stop: str | None) -> TimelineStep:
    all_blocked, main_line = all(map(_blocked, entries)), entries[0].candidate is None
    stopped_here = stage == stop and (main_line or all_blocked)
    if stopped_here or all_blocked:
        state = "failed" if stopped_here or main_line else "rejected"
    else:
        state = "cached" if all(entry.cached for entry in entries) else "passed"
    return TimelineStep(stage, state, sum(entry.seconds for entry in entries), entries)


def _blocked(entry: StageEntry) -> bool:
    return any(check.blocks for check in entry.checks)
