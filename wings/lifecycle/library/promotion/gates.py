"""What a run's own gates say about promoting its winner."""

from gauntlet.bundle.provenance import lineage
from gauntlet.core.report import Check
from gauntlet.core.run_report import RunReport
from wings.lifecycle.library.promotion.ledger import Entry


def gates_of_winner(report: RunReport) -> tuple[Check, ...]:
    """Return the checks of the main line, of the winner, and of the accepted candidates that it was made from."""
    accepted = {candidate.name for candidate in report.candidates if candidate.status == "accepted"}
    line = {None, report.winner, *accepted.intersection(lineage(report))}
    return tuple(check for stage in report.stages if stage.candidate in line for check in stage.checks)


def run_checks(report: RunReport | None, why: str) -> tuple[Check, ...]:
    """Return whether a run may be promoted: it passed, and a person is responsible for every overridden gate.

    `why` is that person's reason; empty without one.
    """
    if report is None:
        detail = "the bundle holds no readable report.json, so its gates are unknown"
        known = Check.of("promote.report", 0, "==", 1, detail, "say why it may be promoted all the same, with --why")
        return (with_reason(known, why),)
    passed = Check.of(
        "promote.run_passed",
        int(report.verdict == "passed"),
        "==",
        1,
        f"run {report.run_id} {report.verdict} at {report.stopped_at}: {report.reason}" if report.stopped_at else "",
        "promote a run that passed its gates",
    )
    overridden = [check for check in gates_of_winner(report) if check.override is not None and not check.passed]
    names = "; ".join(f"{check.name}: {check.override}" for check in overridden)
    fix = "say why it may be promoted all the same, with --why"
    return passed, with_reason(Check.of("promote.overridden_gates", len(overridden), "==", 0, names, fix), why)


def damage_check(damage: list[str]) -> Check:
    """Return whether the bundle's files are those of its manifest, from the lines of `Bundle.damage`."""
    fix = "make the bundle again, with: gauntlet bundle RUN"
    return Check.of("promote.damaged_files", len(damage), "==", 0, "; ".join(damage[:3]), fix)


def harm_check(rollback: Entry | None, why: str) -> Check:
    """Return whether a bundle was never rolled back for proven harm, or a person says why it may come back."""
    detail = f"rolled back on {rollback.time[:10]}, line {rollback.number}: {rollback.why}" if rollback else ""
    fix = "promote another bundle, or say why it may come back, with --why"
    return with_reason(Check.of("promote.rolled_back_for_harm", int(rollback is not None), "==", 0, detail, fix), why)


def with_reason(check: Check, why: str) -> Check:
    """Return a check that a person's reason overrides if it failed; empty without one."""
    return check.replace(override=why) if why and not check.passed else check
