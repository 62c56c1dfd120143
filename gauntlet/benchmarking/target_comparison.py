"""Race any models on any targets: each pair is validated first, and only validated pairs are ranked."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from gauntlet.benchmarking.confidence import RESOLUTION
from gauntlet.benchmarking.contender import Contender, RaceEntry, RacePlan
from gauntlet.benchmarking.expected_outputs import ExpectedOutputs
from gauntlet.benchmarking.machine_load import MachineLoad
from gauntlet.benchmarking.race import CONTROL, race
from gauntlet.benchmarking.rows import aa_deviation, row
from gauntlet.benchmarking.target_validation import TargetValidation, repeatability_check, validate_target
from gauntlet.core.arrays import Array
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.run_report import BenchmarkRow
from gauntlet.targets.base import BaseTarget

Status = Literal["measured", "unavailable", "not applicable", "failed"]


class Latency(Frozen):
    """The rounds' median latencies, in milliseconds.

    Their spread shows how steady the machine was, not the confidence of the median: successive rounds are correlated.
    The differences between pairs are in their rows.
    """

    batch: int
    middle_ms: Number
    low_ms: Number = Field(description="5 % of the rounds were faster")
    high_ms: Number = Field(description="5 % of the rounds were slower")


class ModelOnTarget(Frozen):
    """One model on one target."""

    name: str
    model: str
    target: str
    status: Status
    reason: str = Field("", description="why it was not measured, or the batch sizes at which it failed and why")
    validation: TargetValidation | None = None
    rows: tuple[BenchmarkRow, ...] = ()
    latency: tuple[Latency, ...] = ()
    load_ms: Number = math.nan
    first_call_ms: Number = math.nan
    peak_rss_bytes: int = 0


class BenchResult(Frozen):
    """The result of `gauntlet bench`."""

    schema_version: Literal[2] = 2
    reference: str | None = Field(
        description="the pair that the others are compared with: the first that was measured; at a batch size where it "
        "failed, the next one, whose verdict is 'reference'"
    )
    fixed_batch: int | None = Field(None, description="the only batch size of the first model, if fixed")
    inputs: str
    threads: int
    rounds: int
    block_ms: Number
    resolution: Number
    machine: MachineLoad | None = None
    aa_deviation: Number = Field(
        math.nan, description="largest distance from 1 of the reference's speed-up over itself"
    )
    pairs: tuple[ModelOnTarget, ...]

    @property
    def failed(self) -> tuple[ModelOnTarget, ...]:
        """The pairs that failed validation or crashed, at one batch size or at all."""
        return tuple(pair for pair in self.pairs if pair.status in ("failed", "measured") and pair.reason)


def compare_targets(
    models: Mapping[str, Path],
    targets: Sequence[BaseTarget],
    samples: Mapping[str, Array],
    folder: Path,
    plan: RacePlan,
    *,
    source: Path | None = None,
    inputs_description: str = "random",
    resolution: float = RESOLUTION,
    say: Callable[[str], None] = lambda _: None,
    on_round: Callable[[int], None] | None = None,
) -> BenchResult:
    """Validate and race every model on every target.

    Args:
        models: ONNX files by name; the first provides the reference outputs.
        targets: where to run them.
        samples: by input, each of shape (n, ...), at least as many as the largest batch.
        folder: an empty folder for temporary files.
        plan: settings of the race; a model with a fixed batch is measured at that size.
        source: the framework's file of the first model, for targets that run it.
        inputs_description: where the samples come from.
        resolution: relative difference below which the verdict is neither `faster` nor `slower`.
        say: called with progress messages of one line.
        on_round: called with the number of completed rounds.

    Raises:
        StageError: when the first model does not run.
    """
    inputs = folder / "inputs.npz"
    np.savez(inputs, allow_pickle=False, **samples)
    expected, broken = _expected_outputs(models, inputs, plan.timeout_s)
    fixed = next(iter(expected.values())).fixed_batch
    plan = dataclasses.replace(plan, batch_sizes=(fixed,)) if fixed else plan
    examiner = _Examiner(models, inputs, plan, source, expected, broken, say)
    found = [one for target in targets for one in examiner.examine(target)]
    entries = {pair.name: entry for pair, entry in found if pair.status == "measured"}
    comparison = BenchResult(
        reference=next(iter(entries), None),
        fixed_batch=fixed,
        inputs=inputs_description,
        threads=plan.threads,
        rounds=plan.rounds,
        block_ms=plan.block_ms,
        resolution=resolution,
        pairs=tuple(pair for pair, _ in found),
    )
    return _raced(comparison, entries, inputs, plan, say, on_round) if entries else comparison


def _expected_outputs(
    models: Mapping[str, Path], inputs: Path, timeout_s: float
) -> tuple[dict[str, ExpectedOutputs], dict[str, str]]:
    """Return the expected outputs by model, and the reason by model for which they could not be computed."""
    first, *others = models
    expected = {first: ExpectedOutputs.of(models[first], inputs, timeout_s)}
    broken: dict[str, str] = {}
    for name in others:
        try:
            expected[name] = ExpectedOutputs.of(models[name], inputs, timeout_s, expected[first])
        except StageError as error:
            broken[name] = str(error)
    return expected, broken


@dataclasses.dataclass(frozen=True)
class _Examiner:
    """Decides which models race on which targets."""

    models: Mapping[str, Path]
    inputs: Path
    plan: RacePlan
    source: Path | None
    expected: Mapping[str, ExpectedOutputs]
    broken: Mapping[str, str]
    """Model name -> why its expected outputs could not be computed."""
    say: Callable[[str], None]

    def examine(self, target: BaseTarget) -> list[tuple[ModelOnTarget, RaceEntry]]:
        """Return every model on one target, with its race entry."""
        self.say(f"{target.name}: checking availability")
        refusal = target.rejection_reason(self.source)
        unavailable = None if refusal else target.unavailable()
        found = []
        for name, path in _files(self.models, target, self.source).items():
            pair = ModelOnTarget(name=f"{name} on {target.name}", model=name, target=target.name, status="measured")
            if refusal:
                pair = pair.replace(status="not applicable", reason=refusal)
            elif unavailable:
                pair = pair.replace(status="unavailable", reason=unavailable)
            else:
                pair = self._validated(pair, path, target)
            found.append((pair, RaceEntry(path, target.command(), target.options(), target.name)))
        return found

    def _validated(self, pair: ModelOnTarget, path: Path, target: BaseTarget) -> ModelOnTarget:
        name = next(iter(self.models)) if target.model_suffixes else pair.model
        if name in self.broken:
            return pair.replace(status="failed", reason=self.broken[name])
        if target.declared_precision == "int8" and not self.expected[name].quantized:
            return pair.replace(
                status="not applicable", reason="the target runs quantized models only, and this model is not quantized"
            )
        self.say(f"{pair.name}: validating its outputs")
        truth = validate_target(
            path, target, self.expected[name], self.inputs, threads=self.plan.threads, timeout_s=self.plan.timeout_s
        )
        status: Status = "failed" if truth.reason else "measured"
        return pair.replace(status=status, reason=truth.reason or "", validation=truth)


def _files(models: Mapping[str, Path], target: BaseTarget, source: Path | None) -> dict[str, Path]:
    """Return the files that a target runs: every ONNX file, or the framework model, which may be missing."""
    return {source.stem if source else "source": source or Path()} if target.model_suffixes else dict(models)


def _raced(
    comparison: BenchResult,
    entries: dict[str, RaceEntry],
    inputs: Path,
    plan: RacePlan,
    say: Callable[[str], None],
    on_round: Callable[[int], None] | None,
) -> BenchResult:
    reference = str(comparison.reference)
    say(f"racing {len(entries)} pairs in {plan.rounds} rounds")
    result = race({**entries, CONTROL: entries[reference]}, inputs, plan, keep=(reference, CONTROL), on_round=on_round)
    measured = result.contenders
    running = {batch: [measured[name] for name in entries if measured[name].runs(batch)] for batch in plan.batch_sizes}
    bases = {
        batch: found[0] for batch, found in running.items() if found
    }  # if the first failed, the next one ran all rounds
    return comparison.replace(
        reference=next(iter(bases.values())).name if bases else None,
        machine=result.machine,
        aa_deviation=aa_deviation(measured[CONTROL], measured[reference]),
        pairs=tuple(
            _measured(pair, measured[pair.name], bases, comparison.resolution) if pair.name in entries else pair
            for pair in comparison.pairs
        ),
    )


def _measured(
    pair: ModelOnTarget, contender: Contender, bases: Mapping[int, Contender], resolution: float
) -> ModelOnTarget:
    if contender.error:
        return pair.replace(status="failed", reason=contender.error)
    check = repeatability_check(contender.repeatability_db)
    if pair.validation is not None:
        pair = pair.replace(validation=pair.validation.replace(checks=(*pair.validation.checks, check)))
    if check.blocks:
        return pair.replace(status="failed", reason=str(check))
    return pair.replace(
        reason=contender.failure or "",
        rows=tuple(
            row(contender, bases[batch], batch, resolution=resolution) for batch in contender.batches if batch in bases
        ),
        latency=tuple(_latency(batch, contender.round_medians_ms[batch]) for batch in contender.batches),
        load_ms=contender.load_ms,
        first_call_ms=contender.first_call_ms,
        peak_rss_bytes=contender.peak_rss_bytes,
    )


def _latency(batch: int, times: Sequence[float]) -> Latency:
    low, middle, high = np.percentile(times, [5, 50, 95]).tolist()
    return Latency(batch=batch, middle_ms=middle, low_ms=low, high_ms=high)
