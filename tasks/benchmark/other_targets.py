"""The candidates on other targets: each is validated, then raced against the reference on the first target."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import Field

from gauntlet.benchmarking.contender import Contender, RaceEntry, RacePlan
from gauntlet.benchmarking.expected_outputs import ExpectedOutputs
from gauntlet.benchmarking.race import CONTROL, race
from gauntlet.benchmarking.rows import aa_deviation, rows
from gauntlet.benchmarking.target_validation import TargetValidation, repeatability_check, validate_target
from gauntlet.core.errors import StageError
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
    reason: str | None = Field(
        None, description="why the candidate was not measured, or at which batch sizes it failed"
    )
    rows: tuple[BenchmarkRow, ...] = Field(
        (),
        description="against the reference on the first target; for a deployment target, the rows are in the "
        "candidate's own result",
    )
    aa_deviation: Number | None = Field(
        None, description="largest deviation from 1 of the reference's speed-up over itself, in the race of the rows"
    )

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


@dataclass(frozen=True)
class TargetExaminer:
    """Validates every candidate on another target before it races there."""

    models: Mapping[str, Path]
    inputs: Path
    plan: RacePlan
    expected: Mapping[str, ExpectedOutputs]
    failures: Mapping[str, str]
    """Candidate name -> why it has no expected outputs."""
    framework_model: Path | None = None
    """The file that the reference was exported from."""

    @classmethod
    def from_models(
        cls, models: Mapping[str, Path], inputs: Path, plan: RacePlan, framework_model: Path | None = None
    ) -> Self:
        """Compute the expected outputs of each model; the first is the reference, exported from `framework_model`.

        Raises:
            StageError: when the reference cannot be run.
        """
        expected: dict[str, ExpectedOutputs] = {}
        failures = {}
        reference = next(iter(models), None)
        for name, path in models.items():
            try:
                expected[name] = ExpectedOutputs.of(path, inputs, plan.timeout_s, expected.get(str(reference)))
            except StageError as error:
                if name == reference:
                    raise
                failures[name] = str(error)
        return cls(models, inputs, plan, expected, failures, framework_model)

    def examine(self, target: BaseTarget, accuracy: TargetAccuracy | None = None) -> dict[str, OtherTargetResult]:
        """Validate all candidates on one target; with `accuracy`, also check their accuracy on the test split."""
        unavailable = target.rejection_reason(self.framework_model) or target.unavailable()
        return {name: self._examine(name, target, accuracy, unavailable) for name in self.models}

    def file(self, name: str, target: BaseTarget) -> Path:
        """Return the model file of a candidate that a target runs."""
        return self.framework_model if target.model_suffixes and self.framework_model else self.models[name]

    def _examine(
        self, name: str, target: BaseTarget, accuracy: TargetAccuracy | None, unavailable: str | None
    ) -> OtherTargetResult:
        result = OtherTargetResult(candidate=name, target=target.name)
        if unavailable is not None:
            return result.replace(unavailable=unavailable)
        if name in self.failures:
            return result.replace(reason=self.failures[name])
        expected = self.expected[name]
        if target.declared_precision == "int8" and not expected.quantized:
            return result.replace(unavailable="the target runs only quantized models")
        if target.model_suffixes and name != next(iter(self.models)):
            return result.replace(unavailable="the target runs only the framework's own model, which is the reference")
        path, threads, timeout_s = self.file(name, target), self.plan.threads, self.plan.timeout_s
        validation = validate_target(path, target, expected, self.inputs, threads=threads, timeout_s=timeout_s)
        if accuracy is not None and validation.reason is None:
            try:
                checks = accuracy.checks(path, target, threads=threads, timeout_s=timeout_s)
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
) -> tuple[OtherTargetResult, ...]:
    """Race the candidates on one target against the reference, which runs twice for an A/A control.

    Args:
        target: the target.
        examiner: validates each candidate first.
        reference: the baseline of all targets.
        resolution: relative difference below which no candidate is faster or slower.
        on_round: called with the number of finished rounds.
    """
    results = examiner.examine(target)
    entries = {name: entry(examiner.file(name, target), target) for name, r in results.items() if r.can_race}
    if not entries:
        return tuple(results.values())
    keep = (f"reference of {target.name}", CONTROL)  # a candidate's name has no space
    contenders = {**dict.fromkeys(keep, reference), **entries}
    measured = race(contenders, examiner.inputs, examiner.plan, keep=keep, on_round=on_round).contenders
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
    return tuple(results.values())


def aa_check(deviation: float, limit: float, where: str = "") -> Check:
    """Check the A/A deviation of one race: the reference's speed-up over itself."""
    return Check(
        name="benchmark.max_aa_deviation",
        value=deviation,
        op="<=",
        limit=limit,
        severity="warning",
        detail=f"the FP32 model against itself{where}; a speed-up within this distance of 1.00x is noise",
        remedy="" if deviation <= limit else "stop other load on the machine, or raise benchmark.rounds",
    )


def aa_checks(results: Sequence[OtherTargetResult], limit: float) -> tuple[Check, ...]:
    """Return the A/A check of each race on another target, except where no candidate finished."""
    deviations = {r.target: r.aa_deviation for r in results if r.aa_deviation is not None}
    return tuple(aa_check(deviation, limit, f" in the race on {target}") for target, deviation in deviations.items())


def missing_targets_check(results: Sequence[OtherTargetResult]) -> tuple[Check, ...]:
    """Return the check that all other targets can run here; no check without other targets."""
    reasons: dict[str, list[str | None]] = {}
    for result in results:
        reasons.setdefault(result.target, []).append(result.unavailable)
    missing = [f"{target}: {why[0]}" for target, why in reasons.items() if all(why)]
    if not reasons:
        return ()
    check = Check(
        name="benchmark.absent_targets",
        value=len(missing),
        op="<=",
        limit=0,
        unit="targets",
        severity="warning",
        detail="; ".join(missing),
        remedy="make them available here, or remove them from benchmark.targets" if missing else "",
    )
    return (check,)


def entry(model: Path, target: BaseTarget) -> RaceEntry:
    """Return the race entry of a model on a target."""
    return RaceEntry(model, target.command(), target.options(), target.name)
