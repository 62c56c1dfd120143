"""The candidates on further targets: each is examined first, then raced against the reference of the first target."""

from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import Field

from tasks.benchmark.race import Entry, Plan, race
from tasks.benchmark.rows import rows
from tasks.benchmark.truth import Expected, Truth, examine, steady
from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.report import Check
from tasks.run_report import BenchmarkRow
from tasks.targets.base import BaseTarget


class Elsewhere(Frozen):
    """One candidate on one further target."""

    candidate: str
    target: str
    unavailable: str | None = Field(None, description="why the target cannot run here, where it cannot")
    truth: Truth | None = None
    reason: str | None = Field(None, description="why it was not measured, or is not believed")
    rows: tuple[BenchmarkRow, ...] = Field((), description="against the reference on the first target")

    @property
    def check(self) -> Check | None:
        """The first check that it failed, as a warning: it costs its rows, not the candidate."""
        failed = [check for check in self.truth.checks if check.blocks] if self.truth else []
        told = f"{self.candidate} on {self.target}: "
        return failed[0].replace(severity="warning", detail=told + failed[0].detail) if failed else None


def race_elsewhere(
    target: BaseTarget,
    models: Mapping[str, Path],
    reference: Entry,
    expected: Mapping[str, Expected],
    inputs: Path,
    plan: Plan,
    *,
    resolution: float,
    on_round: Callable[[int], None],
) -> tuple[Elsewhere, ...]:
    """Measure the candidates on one target, in rounds with the reference.

    Args:
        target: where.
        models: files by candidate.
        reference: that all targets are compared with.
        expected: what each candidate should answer.
        inputs: samples by input.
        plan: of the race.
        resolution: relative difference below which nothing is called.
        on_round: called with the number of rounds done.

    Raises:
        StageError: when the reference cannot be measured again.
    """
    why_not = target.unavailable()
    if why_not is None and target.runs != "onnx":
        why_not = "a run races ONNX files; for the framework's own: gauntlet bench --source"
    if why_not is not None:
        return tuple(Elsewhere(candidate=name, target=target.name, unavailable=why_not) for name in models)
    found = {}
    for name, path in models.items():
        if target.stated == "int8" and not expected[name].quantized:
            told: dict[str, object] = {"unavailable": "it takes quantised models, and this one is not"}
        else:
            truth = examine(path, target, expected[name], inputs, threads=plan.threads, timeout_s=plan.timeout_s)
            told = {"truth": truth, "reason": truth.reason}
        found[name] = Elsewhere(candidate=name, target=target.name).replace(**told)
    entries = {
        name: Entry(models[name], target.command(), target.options(), target.name)
        for name, one in found.items()
        if one.reason is None and one.unavailable is None
    }
    if not entries:
        return tuple(found.values())
    control = f"reference of {target.name}"  # no candidate's name has a space
    measured = race({control: reference, **entries}, inputs, plan, keep=(control,), on_round=on_round).contenders
    base = measured[control]
    if base.error:
        raise StageError(f"the reference cannot be measured beside {target.name}: {base.error}")
    for name in entries:
        contender, one = measured[name], found[name]
        check = steady(contender.parity_db)
        if contender.error or not check.passed:
            found[name] = one.replace(reason=contender.error or str(check))
        else:
            found[name] = one.replace(rows=rows(contender, base, resolution=resolution))
    return tuple(found.values())
