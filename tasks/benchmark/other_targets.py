"""The candidates on other targets: each is validated, then raced against the reference on the first target."""

from collections.abc import Callable, Sequence
from typing import Self

from pydantic import Field

from gauntlet.benchmarking.contender import Contender, RaceEntry
from gauntlet.benchmarking.machine_load import MachineLoad
from gauntlet.benchmarking.race import CONTROL, race
from gauntlet.benchmarking.rows import aa_deviation, rows
from gauntlet.benchmarking.target_examiner import TargetExaminer
from gauntlet.benchmarking.target_validation import TargetValidation, repeatability_check
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.report import Check
from gauntlet.core.run_report import BenchmarkRow
from gauntlet.runtime.worker_client import WorkerFailed
from gauntlet.targets.base import BaseTarget
from tasks.benchmark.target_accuracy import TargetAccuracy


class OtherTargetResult(Frozen):
    """One candidate on one other target."""

    candidate: str
    target: str
    unavailable: str | None = Field(None, description="why the target cannot run the candidate here")
    validation: TargetValidation | None = None
    reason: str | None = Field(None, description="why it was not measured, or at which batch sizes it failed")
    rows: tuple[BenchmarkRow, ...] = Field((), description="against the reference; none for a deployment target")
    aa_deviation: Number | None = Field(None, description="of the reference in this race, as in `BenchmarkFacts`")

    @property
    def can_race(self) -> bool:
        """Whether the candidate can be measured on the target."""
        return self.reason is None and self.unavailable is None

    @property
    def check(self) -> Check | None:
        """The first failed check, as a warning: the candidate loses only its rows on this target."""
        failed = [check for check in self.validation.checks if check.blocks] if self.validation else []
        if not failed:
            return None
        return failed[0].replace(severity="warning", detail=f"{self.candidate} on {self.target}: {failed[0].detail}")

    def with_race_failure(self, measured: Contender) -> Self:
        """Return the result with the reason why its race failed or was incomplete, if it was."""
        check = repeatability_check(measured.repeatability_db)
        reason = measured.failure if check.passed else str(check)
        return self.replace(reason=reason) if reason else self


class TargetRace(Frozen):
    """The race of all candidates on one other target."""

    results: tuple[OtherTargetResult, ...]
    reference: tuple[BenchmarkRow, ...] = Field(
        (), description="the FP32 model on the first target, the base of all rows"
    )
    control: tuple[BenchmarkRow, ...] = Field((), description="the same once more: what equal models differ by")
    load: MachineLoad | None = None


def examine_candidates(
    examiner: TargetExaminer, target: BaseTarget, accuracy: TargetAccuracy | None = None
) -> dict[str, OtherTargetResult]:
    """Validate all candidates on one target; with `accuracy`, also check their accuracy on the test split."""
    return {name: _examine(examiner, name, target, accuracy) for name in examiner.models}


def _examine(
    examiner: TargetExaminer, name: str, target: BaseTarget, accuracy: TargetAccuracy | None
) -> OtherTargetResult:
    found = examiner.examine(name, target)
    result = OtherTargetResult(candidate=name, target=target.name)
    if found.status in ("unavailable", "not applicable"):
        return result.replace(unavailable=found.reason)
    validation = found.validation
    if validation is None:
        return result.replace(reason=found.reason)
    if accuracy is not None and validation.reason is None:
        path, plan = examiner.file(name, target), examiner.plan
        try:
            checks = accuracy.checks(name, path, target, threads=plan.threads, timeout_s=plan.timeout_s)
            validation = validation.replace(checks=(*validation.checks, *checks))
        except WorkerFailed as error:
            validation = validation.replace(error=str(error))
    return result.replace(validation=validation, reason=validation.reason)


def race_on_target(
    target: BaseTarget,
    examiner: TargetExaminer,
    reference: RaceEntry,
    *,
    resolution: float,
    on_round: Callable[[int], None],
) -> TargetRace:
    """Race the candidates on one target against the reference of all targets, which runs twice for an A/A control."""
    results = examine_candidates(examiner, target)
    entries = {
        name: RaceEntry.on_target(examiner.file(name, target), target) for name, r in results.items() if r.can_race
    }
    if not entries:
        return TargetRace(results=tuple(results.values()))
    keep = (f"reference of {target.name}", CONTROL)  # a candidate's name has no space
    contenders = {**dict.fromkeys(keep, reference), **entries}
    outcome = race(contenders, examiner.inputs, examiner.plan, keep=keep, on_round=on_round)
    measured = outcome.contenders
    base, control = (measured[name] for name in keep)
    failure = base.failure or control.failure
    deviation = aa_deviation(control, base)
    for name in entries:
        if failure:
            results[name] = results[name].replace(reason=f"the reference could not be measured in this race: {failure}")
            continue
        results[name] = result = results[name].with_race_failure(measured[name])
        if result.reason in (None, measured[name].failure):  # after a failed batch size, the others still count
            found = rows(measured[name], base, resolution=resolution)
            results[name] = result.replace(rows=found, aa_deviation=deviation if found else None)
    return TargetRace(
        results=tuple(results.values()),
        reference=() if failure else rows(base, base, resolution=resolution),
        control=() if failure else rows(control, base, resolution=resolution),
        load=outcome.machine,
    )


def aa_check(deviation: float, limit: float, where: str = "") -> Check:
    """Check the A/A deviation of one race: the reference's speed-up over itself."""
    detail = f"the FP32 model against itself{where}; a speed-up within this distance of 1.00x is noise"
    fix = "stop other load on the machine, or raise benchmark.rounds"
    return Check.of("benchmark.max_aa_deviation", deviation, "<=", limit, detail, fix, severity="warning")


def aa_checks(results: Sequence[OtherTargetResult], limit: float) -> tuple[Check, ...]:
    """Return the A/A check of each race on another target, except where no candidate finished."""
    deviations = {r.target: r.aa_deviation for r in results if r.aa_deviation is not None}
    return tuple(aa_check(deviation, limit, f" in the race on {target}") for target, deviation in deviations.items())


def missing_targets_check(
    results: Sequence[OtherTargetResult],
    name: str = "benchmark.absent_targets",
    fix: str = "make them available here, or remove them from benchmark.targets",
) -> tuple[Check, ...]:
    """Return the check that all other targets can run; no check without other targets."""
    reasons: dict[str, list[str | None]] = {}
    for result in results:
        reasons.setdefault(result.target, []).append(result.unavailable)
    if not reasons:
        return ()
    missing = [f"{target}: {why[0]}" for target, why in reasons.items() if all(why)]
    return (Check.of(name, len(missing), "<=", 0, "; ".join(missing), fix, unit="targets", severity="warning"),)
