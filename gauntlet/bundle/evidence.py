"""The part of a run's report that is evidence for its winner."""

from gauntlet.core.run_report import CandidateEntry, RunReport, StageEntry


def evidence(report: RunReport) -> RunReport:
    """Return the report with the stages of the main line and of the winner's line alone, and all race results.

    It is a snapshot, taken before the bundle is made: `seconds` end there, and the host's name is left out.
    """
    line = {None, *lineage(report)}
    return report.replace(
        stages=tuple(entry for entry in report.stages if entry.candidate in line),
        environment={key: value for key, value in report.environment.items() if key != "host"},
        links={},
    )


def winner_of(report: RunReport) -> CandidateEntry:
    """Return the winner's entry; `StopIteration` for a report without one."""
    return next(candidate for candidate in report.candidates if candidate.name == report.winner)


def lineage(report: RunReport) -> tuple[str, ...]:
    """Return the names of the winner and of the candidates that it was made from, the winner first."""
    parents, name, names = {c.name: c.parent for c in report.candidates}, report.winner, []
    while name is not None:
        names.append(name)
        name = parents.get(name)
    return tuple(names)


def evaluation(report: RunReport) -> StageEntry | None:
    """Return the stage `evaluate` of the winner, or of the nearest network that it was made from."""
    entries = (report.stage("evaluate", name) for name in (*lineage(report), None))
    return next((entry for entry in entries if entry is not None), None)


def temperature(report: RunReport) -> float | None:
    """Return the temperature that calibrates the winner's confidence; None where none was fitted."""
    entry = evaluation(report)
    calibration = entry.facts.get("calibration") if entry else None
    value = calibration.get("temperature") if isinstance(calibration, dict) else None
    return float(value) if isinstance(value, int | float) else None


def gates_of(report: RunReport) -> tuple[StageEntry, ...]:
    """Return the stages that have a check, in the order in which they ran."""
    return tuple(entry for entry in report.stages if entry.checks)
