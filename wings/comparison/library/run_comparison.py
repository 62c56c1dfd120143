"""Two runs side by side: their winners, and what differs in gates, settings and environment."""

from collections.abc import Iterator
from typing import Any

from pydantic import Field, JsonValue

from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.report import Check
from gauntlet.core.run_report import BenchmarkRow, RunReport


class RunSummary(Frozen):
    """One run and its winner."""

    run_id: str
    name: str
    verdict: str
    stopped_at: str | None
    winner: str | None
    target: str | None = Field(description="that the winner was raced on")
    metric: str = Field(description="of the `accuracy`")
    accuracy: Number | None
    sqnr_db: Number | None
    size_bytes: int | None
    benchmark: tuple[BenchmarkRow, ...] = Field(description="the winner's, by batch size")


class Difference(Frozen):
    """Something that differs; None where a run does not have it."""

    name: str
    first: JsonValue
    second: JsonValue


class RunComparison(Frozen):
    """Two runs."""

    first: RunSummary
    second: RunSummary
    gates: tuple[Difference, ...] = Field(
        description="checks that passed in one run alone, with their values, of stages that neither run stopped before"
    )
    settings: tuple[Difference, ...] = Field(description="keys of the configuration")
    environment: tuple[Difference, ...] = Field(description="machine and packages")


def compare_runs(first: RunReport, second: RunReport) -> RunComparison:
    """Return what differs between two runs."""
    return RunComparison(
        first=_summary(first),
        second=_summary(second),
        gates=tuple(_gate_differences(first, second)),
        settings=tuple(_differences(_flat(first.config), _flat(second.config))),
        environment=tuple(_differences(_flat(first.environment), _flat(second.environment))),
    )


def _summary(report: RunReport) -> RunSummary:
    winner = next((candidate for candidate in report.candidates if candidate.name == report.winner), None)
    return RunSummary(
        run_id=report.run_id,
        name=report.name,
        verdict=report.verdict,
        stopped_at=report.stopped_at,
        winner=report.winner,
        target=winner.target if winner else None,
        metric=report.metric,
        accuracy=winner.accuracy if winner else None,
        sqnr_db=winner.sqnr_db if winner else None,
        size_bytes=winner.size_bytes if winner else None,
        benchmark=tuple(row for row in winner.benchmark if row.target == winner.target) if winner else (),
    )


def _gate_differences(first: RunReport, second: RunReport) -> Iterator[Difference]:
    """Yield the checks with another outcome, first those that did not pass; a missing one is an outcome, too."""
    old, new = _checks(first, second), _checks(second, first)
    pairs = {name: (old.get(name), new.get(name)) for name in dict.fromkeys((*old, *new))}
    for name, pair in sorted(pairs.items(), key=lambda item: all(c is None or c.passed for c in item[1])):
        if _outcome(pair[0]) != _outcome(pair[1]):
            yield Difference(name=name, first=_outcome_text(pair[0]), second=_outcome_text(pair[1]))


def _checks(report: RunReport, other: RunReport) -> dict[str, Check]:
    """Return the checks by name, without those of stages that the other run stopped before."""
    return {
        f"{entry.candidate}: {check.name}" if entry.candidate else check.name: check
        for entry in report.stages
        if not other.stopped_at or other.stage(entry.stage, entry.candidate)
        for check in entry.checks
    }


def _outcome(check: Check | None) -> str | None:
    if check is None:
        return None
    if check.passed:
        return "passed"
    return "overridden" if check.override else "failed" if check.blocks else "warned"


def _outcome_text(check: Check | None) -> str | None:
    if check is None:
        return None
    value = "missing" if check.value is None else f"{check.value:.6g}"
    return f"{_outcome(check)}: {value} {check.op} {check.limit:.6g}"


def _differences(first: dict[str, Any], second: dict[str, Any]) -> Iterator[Difference]:
    for name in sorted({*first, *second}):
        if first.get(name) != second.get(name):
            yield Difference(name=name, first=first.get(name), second=second.get(name))


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested values by dotted names; an element of a list is named by its number."""
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        pairs = list(enumerate(value))
    else:
        return {prefix: value}
    parts = [_flat(item, f"{prefix}.{name}" if prefix else str(name)) for name, item in pairs]
    return {name: item for part in parts for name, item in part.items()}
