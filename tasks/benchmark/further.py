"""The candidates on further targets: each is examined first, then raced against the reference of the first target."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import Field

from tasks.benchmark.client import WorkerFailed
from tasks.benchmark.contender import Contender, Entry, Plan
from tasks.benchmark.race import CONTROL, race
from tasks.benchmark.rows import aa_deviation, rows
from tasks.benchmark.shipping import AccuracyGate
from tasks.benchmark.truth import Expected, Truth, examine, steady
from tasks.errors import StageError
from tasks.frozen import Frozen, Number
from tasks.report import Check
from tasks.run_report import BenchmarkRow
from tasks.targets.base import BaseTarget


class Elsewhere(Frozen):
    """One candidate on one further target."""

    candidate: str
    target: str
    unavailable: str | None = Field(None, description="why the target cannot run here, where it cannot")
    truth: Truth | None = None
    reason: str | None = Field(None, description="why it was not measured, or is not believed, or at which batch sizes")
    rows: tuple[BenchmarkRow, ...] = Field(
        (),
        description="against the reference on the first target; the candidate's own result has them where it may be "
        "shipped on this target",
    )
    aa_deviation: Number | None = Field(
        None,
        description="largest distance from 1 of the reference's speed-up over itself, in the race that the rows are of",
    )

    @property
    def races(self) -> bool:
        """Whether nothing speaks against measuring it."""
        return self.reason is None and self.unavailable is None

    @property
    def check(self) -> Check | None:
        """The first check that it failed, as a warning: it costs its rows, not the candidate."""
        failed = [check for check in self.truth.checks if check.blocks] if self.truth else []
        told = f"{self.candidate} on {self.target}: "
        return failed[0].replace(severity="warning", detail=told + failed[0].detail) if failed else None

    def judged(self, measured: Contender) -> Self:
        """Return it with the reason why its race is not believed, or is not whole, where there is one."""
        check = steady(measured.parity_db)
        reason = measured.lost if check.passed else str(check)
        return self.replace(reason=reason) if reason else self


@dataclass(frozen=True)
class Examination:
    """What every candidate is asked on a further target before it races there."""

    models: Mapping[str, Path]
    inputs: Path
    plan: Plan
    expected: Mapping[str, Expected]
    failures: Mapping[str, str]
    """Why nobody knows what a candidate should answer."""
    source: Path | None = None
    """What the reference was exported from."""

    @classmethod
    def of(cls, models: Mapping[str, Path], inputs: Path, plan: Plan, source: Path | None = None) -> Self:
        """Find out what each should answer; the first is the reference, exported from the source framework's file.

        Raises:
            StageError: when the reference cannot be asked.
        """
        expected: dict[str, Expected] = {}
        failures = {}
        reference = next(iter(models), None)
        for name, path in models.items():
            try:
                expected[name] = Expected.of(path, inputs, plan.timeout_s, expected.get(str(reference)))
            except StageError as error:
                if name == reference:
                    raise
                failures[name] = str(error)
        return cls(models, inputs, plan, expected, failures, source)

    def on(self, target: BaseTarget, accuracy: AccuracyGate | None = None) -> dict[str, Elsewhere]:
        """Ask all candidates on one target; with `accuracy`, also for their answers to the test samples."""
        why_not = target.refuses(self.source) or target.unavailable()
        return {name: self._ask(name, target, accuracy, why_not) for name in self.models}

    def file(self, name: str, target: BaseTarget) -> Path:
        """Return what a target runs of a candidate."""
        return self.source if target.sources and self.source else self.models[name]

    def _ask(self, name: str, target: BaseTarget, accuracy: AccuracyGate | None, why_not: str | None) -> Elsewhere:
        found = Elsewhere(candidate=name, target=target.name)
        if why_not is not None:
            return found.replace(unavailable=why_not)
        if name in self.failures:
            return found.replace(reason=self.failures[name])
        expected = self.expected[name]
        if target.stated == "int8" and not expected.quantized:
            return found.replace(unavailable="it takes quantised models, and this one is not")
        if target.sources and name != next(iter(self.models)):
            return found.replace(unavailable="only the reference is what its framework runs")
        path, threads, timeout_s = self.file(name, target), self.plan.threads, self.plan.timeout_s
        truth = examine(path, target, expected, self.inputs, threads=threads, timeout_s=timeout_s)
        if accuracy is not None and truth.reason is None:
            try:
                checks = accuracy.checks(path, target, threads=threads, timeout_s=timeout_s)
                truth = truth.replace(checks=(*truth.checks, *checks))
            except WorkerFailed as error:
                truth = truth.replace(error=str(error))
        return found.replace(truth=truth, reason=truth.reason)


def race_elsewhere(
    target: BaseTarget,
    examination: Examination,
    reference: Entry,
    *,
    resolution: float,
    on_round: Callable[[int], None],
) -> tuple[Elsewhere, ...]:
    """Measure the candidates on one target, in rounds with the reference, which runs twice as its own control.

    Args:
        target: where.
        examination: which each must pass.
        reference: that all targets are compared with.
        resolution: relative difference below which nothing is called.
        on_round: called with the number of rounds done.
    """
    found = examination.on(target)
    entries = {name: entry(examination.file(name, target), target) for name, one in found.items() if one.races}
    if not entries:
        return tuple(found.values())
    keep = (f"reference of {target.name}", CONTROL)  # no candidate's name has a space
    everyone = {**dict.fromkeys(keep, reference), **entries}
    measured = race(everyone, examination.inputs, examination.plan, keep=keep, on_round=on_round).contenders
    base, control = (measured[name] for name in keep)
    broken = base.lost or control.lost
    apart = aa_deviation(control, base)
    for name in entries:
        if broken:
            found[name] = found[name].replace(reason=f"the reference could not be measured beside it: {broken}")
            continue
        found[name] = judged = found[name].judged(measured[name])
        if judged.reason in (None, measured[name].lost):  # one that lost a batch size keeps the others
            told = rows(measured[name], base, resolution=resolution)
            found[name] = judged.replace(rows=told, aa_deviation=apart if told else None)
    return tuple(found.values())


def same_twice(deviation: float, limit: float, where: str = "") -> Check:
    """Judge what the reference seems to differ from itself by, in one race."""
    return Check(
        name="benchmark.max_aa_deviation",
        value=deviation,
        op="<=",
        limit=limit,
        severity="warning",
        detail=f"the FP32 model against itself{where}; a speed-up within this distance is not believed",
        remedy="" if deviation <= limit else "let the machine rest, or raise benchmark.rounds",
    )


def controls(elsewhere: Sequence[Elsewhere], limit: float) -> tuple[Check, ...]:
    """Return the control's check of each race on further targets; of one that nobody finished there is none."""
    found = {one.target: one.aa_deviation for one in elsewhere if one.aa_deviation is not None}
    return tuple(same_twice(deviation, limit, f" beside {target}") for target, deviation in found.items())


def absent(elsewhere: Sequence[Elsewhere]) -> tuple[Check, ...]:
    """Return the warning that further targets cannot run here at all; nothing where there are none."""
    reasons: dict[str, list[str | None]] = {}
    for one in elsewhere:
        reasons.setdefault(one.target, []).append(one.unavailable)
    missing = [f"{target}: {found[0]}" for target, found in reasons.items() if all(found)]
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
        remedy="make them run here, or take them out of benchmark.targets" if missing else "",
    )
    return (check,)


def entry(model: Path, target: BaseTarget) -> Entry:
    """Return a model on a target, as it races."""
    return Entry(model, target.command(), target.options(), target.name)
