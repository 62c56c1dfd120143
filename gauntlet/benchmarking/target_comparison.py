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
from gauntlet.benchmarking.machine_load import MachineLoad
from gauntlet.benchmarking.race import CONTROL, race
from gauntlet.benchmarking.rows import aa_deviation, row
from gauntlet.benchmarking.target_examiner import Status, TargetExaminer
from gauntlet.benchmarking.target_validation import TargetValidation, repeatability_check
from gauntlet.core.arrays import Array
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.run_report import BenchmarkRow
from gauntlet.targets.base import BaseTarget


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
    aa_deviation: Number = Field(math.nan, description="the reference's largest deviation from 1 against itself")
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
    framework_model: Path | None = None,
    inputs_description: str = "random",
    resolution: float = RESOLUTION,
    say: Callable[[str], None] = lambda _: None,
    on_round: Callable[[int], None] = lambda _: None,
) -> BenchResult:
    """Validate and race every model on every target; the first model provides the reference outputs.

    Args:
        models: ONNX files by name.
        targets: where to run them.
        samples: by input, each of shape (n, ...), at least as many as the largest batch.
        folder: an empty folder for temporary files.
        plan: settings of the race; a model with a fixed batch is measured at that size.
        framework_model: the file that the first model was exported from, for targets that run it.
        inputs_description: where the samples come from.
        resolution: relative difference below which the verdict is neither `faster` nor `slower`.
        say: called with progress messages of one line.
        on_round: called with the number of completed rounds.

    Raises:
        StageError: when the first model does not run.
    """
    inputs = folder / "inputs.npz"
    np.savez(inputs, allow_pickle=False, **samples)
    examiner = TargetExaminer.from_models(models, inputs, plan, framework_model)
    fixed = next(iter(examiner.expected.values())).fixed_batch
    plan = dataclasses.replace(plan, batch_sizes=(fixed,)) if fixed else plan
    pairs: list[ModelOnTarget] = []
    entries: dict[str, RaceEntry] = {}
    for target in targets:
        for name in list(models)[:1] if target.model_suffixes else models:
            pair = _examine(examiner, name, target, say)
            pairs.append(pair)
            if pair.status == "measured":
                entries[pair.name] = RaceEntry.on_target(examiner.file(name, target), target)
    result = BenchResult(
        reference=next(iter(entries), None),
        fixed_batch=fixed,
        inputs=inputs_description,
        threads=plan.threads,
        rounds=plan.rounds,
        block_ms=plan.block_ms,
        resolution=resolution,
        pairs=tuple(pairs),
    )
    if not entries:
        return result
    say(f"racing {len(entries)} pairs in {plan.rounds} rounds")
    return _race(result, entries, inputs, plan, on_round)


def _examine(examiner: TargetExaminer, name: str, target: BaseTarget, say: Callable[[str], None]) -> ModelOnTarget:
    source = examiner.framework_model
    model = (source.stem if source else "source") if target.model_suffixes else name
    say(f"{model} on {target.name}: validating")
    found = examiner.examine(name, target)
    return ModelOnTarget(
        name=f"{model} on {target.name}",
        model=model,
        target=target.name,
        status=found.status,
        reason=found.reason,
        validation=found.validation,
    )


def _race(
    result: BenchResult, entries: Mapping[str, RaceEntry], inputs: Path, plan: RacePlan, on_round: Callable[[int], None]
) -> BenchResult:
    reference = next(iter(entries))
    outcome = race({**entries, CONTROL: entries[reference]}, inputs, plan, keep=(reference, CONTROL), on_round=on_round)
    measured = outcome.contenders
    running = {batch: [measured[name] for name in entries if measured[name].runs(batch)] for batch in plan.batch_sizes}
    bases = {batch: found[0] for batch, found in running.items() if found}  # where the first failed, the next ran on
    return result.replace(
        reference=next(iter(bases.values())).name if bases else None,
        machine=outcome.machine,
        aa_deviation=aa_deviation(measured[CONTROL], measured[reference]),
        pairs=tuple(
            _with_timing(pair, measured[pair.name], bases, result.resolution) if pair.name in entries else pair
            for pair in result.pairs
        ),
    )


def _with_timing(
    pair: ModelOnTarget, contender: Contender, bases: Mapping[int, Contender], resolution: float
) -> ModelOnTarget:
    if contender.error:
        return pair.replace(status="failed", reason=contender.error)
    check = repeatability_check(contender.repeatability_db)
    if pair.validation is not None:
        pair = pair.replace(validation=pair.validation.replace(checks=(*pair.validation.checks, check)))
    if check.blocks:
        return pair.replace(status="failed", reason=str(check))
    batches = [batch for batch in contender.batches if batch in bases]
    return pair.replace(
        reason=contender.failure or "",
        rows=tuple(row(contender, bases[batch], batch, resolution=resolution) for batch in batches),
        latency=tuple(_latency(batch, contender.round_medians_ms[batch]) for batch in contender.batches),
        load_ms=contender.load_ms,
        first_call_ms=contender.first_call_ms,
        peak_rss_bytes=contender.peak_rss_bytes,
    )


def _latency(batch: int, times: Sequence[float]) -> Latency:
    low, middle, high = np.percentile(times, [5, 50, 95]).tolist()
    return Latency(batch=batch, middle_ms=middle, low_ms=low, high_ms=high)
