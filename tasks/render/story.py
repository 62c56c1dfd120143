"""What happened, in the order in which a reader asks: did it pass, who won, what was rejected, where did it stop."""

from dataclasses import dataclass

from tasks.report import Check
from tasks.run_report import BenchmarkRow, CandidateEntry, RunReport, StageEntry

LINE = (
    "data", "train", "evaluate", "export", "structure", "numerics",
    "optimize", "prune", "calibrate", "quantize", "repair", "accuracy", "portability", "benchmark", "explain", "select",
)  # fmt: skip
"""The stages in their order, to tell what a stopped run did not reach. A stage that is not named here still shows."""

JUDGES = ("structure", "numerics", "accuracy", "portability")
"""The stages that judge a candidate. Candidates run side by side; a reader wants all makers before all judges."""

MARKS = {"passed": "✓", "failed": "✗", "cached": "↺", "not run": "○", "warning": "!", "overridden": "≈"}
SEVEREST_FIRST = ("failed", "warning", "overridden", "passed")


@dataclass(frozen=True)
class Step:
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
class Gate:
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


def steps(report: RunReport) -> list[Step]:
    """Return the pipeline as it ran, and after a stop the stages that it did not reach."""
    groups: dict[tuple[str, bool], list[StageEntry]] = {}
    for entry in report.stages:
        groups.setdefault((entry.stage, entry.candidate is None), []).append(entry)
    stop = report.stopped_at
    taken = [_step(key[0], tuple(groups[key]), stop) for key in _in_order(list(groups))]
    seen = {stage for stage, _ in groups}
    if stop is not None and stop not in seen:
        taken.append(Step(stop, "failed", None, stopped_here=True))
        seen.add(stop)
    ahead = LINE[LINE.index(stop) + 1 :] if stop in LINE else ()
    return taken + [Step(stage, "not run", None) for stage in ahead if stage not in seen]


def gates(report: RunReport) -> list[Gate]:
    """Return every check, the failed ones first."""
    found = [Gate(e.stage, e.candidate, check, state_of(check)) for e in report.stages for check in e.checks]
    return sorted(found, key=lambda gate: SEVEREST_FIRST.index(gate.state))


def obstacles(report: RunReport) -> list[Gate]:
    """Return the checks that ended a failed run: those of its main line, or else those that left no candidate."""
    if report.verdict == "passed":
        return []
    failed = [gate for gate in gates(report) if gate.state == "failed"]
    return [gate for gate in failed if gate.candidate is None] or failed


def told_by(gates: list[Gate], reason: str) -> bool:
    """Tell whether a run's reason says no more than these checks do."""
    lines = {line.strip() for line in reason.splitlines() if line.strip()}
    return bool(lines) and lines <= {line.strip() for g in gates for line in str(g.check).splitlines()}


def winner(report: RunReport) -> CandidateEntry | None:
    """Return the winner's entry."""
    return next((c for c in report.candidates if c.name == report.winner), None)


def reference(report: RunReport) -> CandidateEntry | None:
    """Return the entry that the others were raced against: the one marked so, or else the first without a parent."""
    for candidate in report.candidates:
        if any(row.verdict == "reference" for row in candidate.benchmark):
            return candidate
    return next((c for c in report.candidates if c.parent is None), None)


def ranked(report: RunReport) -> list[CandidateEntry]:
    """Return the candidates: the winner, the other accepted ones, the rejected ones."""
    return sorted(report.candidates, key=lambda c: (c.name != report.winner, c.status == "rejected"))


def decisive(report: RunReport, candidate: CandidateEntry) -> BenchmarkRow | None:
    """Return the measurement that decides: the one at the batch size that the configuration names, or the first."""
    chosen = report.config.get("select")
    batch = chosen.get("batch") if isinstance(chosen, dict) else None
    return next((row for row in candidate.benchmark if row.batch == batch), next(iter(candidate.benchmark), None))


def _in_order(keys: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    of_candidates = [key for key in keys if not key[1]]
    of_candidates.sort(key=lambda key: JUDGES.index(key[0]) if key[0] in JUDGES else -1)
    queue = iter(of_candidates)
    return [key if key[1] else next(queue) for key in keys]


def _step(stage: str, entries: tuple[StageEntry, ...], stop: str | None) -> Step:
    blocked = [_blocked(entry) for entry in entries]
    stopped_here = stage == stop and (entries[0].candidate is None or all(blocked))
    if stopped_here or all(blocked):
        state = "failed"
    else:
        state = "cached" if all(entry.cached for entry in entries) else "passed"
    return Step(stage, state, sum(entry.seconds for entry in entries), entries, stopped_here)


def _blocked(entry: StageEntry) -> bool:
    return any(check.blocks for check in entry.checks)


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
