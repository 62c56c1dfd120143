"""The candidates on other targets: each is validated, then raced against the reference on the first target."""

from collections.abc import Callable, Sequence

from gauntlet.core.report import Check
from gauntlet.race.contender import Entry
from gauntlet.race.machine_load import MachineLoad
from gauntlet.race.table import CONTROL, RaceTable, run_race
from gauntlet.race.target_examiner import ModelOnTarget, TargetExaminer
from gauntlet.race.target_validation import SLICES_SQNR
from gauntlet.runtime.worker_client import WorkerFailed
from gauntlet.targets.base import BaseTarget
from tasks.benchmark.target_accuracy import TargetAccuracy


def examine_candidates(
    examiner: TargetExaminer, target: BaseTarget, accuracy: TargetAccuracy | None = None
) -> dict[str, ModelOnTarget]:
    """Validate all candidates on one target; with `accuracy`, also check their accuracy on the test split."""
    return {name: _examine(examiner, name, target, accuracy) for name in examiner.models}


def _examine(examiner: TargetExaminer, name: str, target: BaseTarget, accuracy: TargetAccuracy | None) -> ModelOnTarget:
    """Validate a candidate on a target; with `accuracy`, the run's own limits judge its slices on all test samples."""
    result = examiner.examine(name, target)
    if accuracy is None or result.validation is None:
        return result
    path, plan = examiner.file(name, target), examiner.plan
    checks = tuple(c.replace(severity="warning") if c.name == SLICES_SQNR else c for c in result.validation.checks)
    validation = result.validation.replace(checks=checks)
    if validation.reason:
        return result.validated(validation)
    try:
        own = accuracy.checks(name, path, target, threads=plan.threads, timeout_s=plan.timeout_s)
        return result.validated(validation.replace(checks=(*checks, *own)))
    except WorkerFailed as error:
        return result.validated(validation.replace(error=str(error)))


def race_on_target(
    target: BaseTarget, examiner: TargetExaminer, reference: Entry, resolution: float, on_round: Callable[[int], None]
) -> tuple[tuple[ModelOnTarget, ...], RaceTable | None]:
    """Race the candidates on one target against the reference of all targets, which runs twice for an A/A control.

    No table where no candidate can race, or the reference failed.
    """
    results = examine_candidates(examiner, target)
    entries = {
        name: Entry.on_target(examiner.file(name, target), target)
        for name, result in results.items()
        if result.status == "measured"
    }
    if not entries:
        return tuple(results.values()), None
    base = f"reference of {target.name}"  # a candidate's name has no space
    table = run_race(
        {base: reference, **entries},
        examiner.plan,
        base,
        inputs=examiner.inputs,
        resolution=resolution,
        on_round=on_round,
    )
    if failure := table.failure(base, CONTROL):
        lost = {"status": "failed", "reason": f"the reference could not be measured in this race: {failure}"}
        return tuple(r.replace(**lost) if name in entries else r for name, r in results.items()), None
    for name in entries:  # after a failed batch size, the others still count
        result = results[name].raced(table.contenders[name], table.rows[name], table.failure(name))
        results[name] = result.replace(aa_deviation=table.aa_deviation) if result.rows else result
    return tuple(results.values()), table


def aa_check(deviation: float, limit: float, where: str = "") -> Check:
    """Check the A/A deviation of one race: the reference's speed-up over itself."""
    detail = f"the FP32 model against itself{where}; a speed-up within this distance of 1.00x is noise"
    fix = "stop other load on the machine, or raise benchmark.rounds"
    return Check.of("benchmark.max_aa_deviation", deviation, "<=", limit, detail, fix, severity="warning")


def load_check(machine: MachineLoad, threads: int, name: str = "benchmark.disturbed") -> Check:
    """Check that no other work took the processors from timed calls."""
    fix = "repeat it on a quiet machine, or permit benchmark.priority: realtime (an rtprio limit of 1) for short turns"
    count = int(machine.is_disturbed(threads))
    return Check.of(name, count, "==", 0, machine.text(threads), fix, severity="warning")


def aa_checks(results: Sequence[ModelOnTarget], limit: float) -> tuple[Check, ...]:
    """Return the A/A check of each race on another target, except where no candidate finished."""
    deviations = {r.target: r.aa_deviation for r in results if r.aa_deviation is not None}
    return tuple(aa_check(deviation, limit, f" in the race on {target}") for target, deviation in deviations.items())


def missing_targets_check(
    results: Sequence[ModelOnTarget],
    name: str = "benchmark.absent_targets",
    fix: str = "make them available here, or remove them from benchmark.targets",
) -> tuple[Check, ...]:
    """Return the check that all other targets can run; no check without other targets."""
    reasons: dict[str, list[str | None]] = {}
    for result in results:
        reasons.setdefault(result.target, []).append(result.reason if result.is_absent else None)
    if not reasons:
        return ()
    missing = [f"{target}: {why[0]}" for target, why in reasons.items() if all(why)]
    return (Check.of(name, len(missing), "<=", 0, "; ".join(missing), fix, unit="targets", severity="warning"),)
