"""Race any models on any targets: each pair is validated first, and only validated pairs are ranked."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from gauntlet.core.arrays import Array, data_table, write_arrays
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.run_report import BenchmarkRow
from gauntlet.race.confidence import RESOLUTION
from gauntlet.race.contender import Entry, Plan
from gauntlet.race.machine_load import MachineLoad
from gauntlet.race.table import RaceTable, run_race
from gauntlet.race.target_examiner import ModelOnTarget, TargetExaminer
from gauntlet.race.target_validation import repeatability_check
from gauntlet.targets.base import BaseTarget


class BenchResult(Frozen):
    """The result of `gauntlet bench`."""

    schema_version: Literal[3] = 3
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

    @property
    def table(self) -> Any:
        """The measured pairs by batch size: a pandas DataFrame where pandas is installed, or else a list of rows."""
        return data_table([self._row(pair, row) for pair in self.pairs for row in pair.rows])

    def _row(self, pair: ModelOnTarget, row: BenchmarkRow) -> dict[str, Any]:
        shown = ("batch", "median_ms", "speedup", "speedup_low", "speedup_high", "verdict")
        values = {name: getattr(row, name) for name in shown}
        return {"model": pair.candidate, "target": pair.target, **values}


def compare_targets(
    models: Mapping[str, Path],
    targets: Sequence[BaseTarget],
    samples: Mapping[str, Array],
    folder: Path,
    plan: Plan,
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
        resolution: relative difference of two races of the same files; each end of an interval is wider by it.
        say: called with progress messages of one line.
        on_round: called with the number of completed rounds.

    Raises:
        StageError: when the first model does not run.
    """
    inputs = folder / "inputs.npz"
    write_arrays(inputs, samples)
    examiner = TargetExaminer.from_models(models, inputs, plan, framework_model)
    fixed = next(iter(examiner.expected.values())).fixed_batch
    plan = dataclasses.replace(plan, batch_sizes=(fixed,)) if fixed else plan
    pairs, entries = _examined(examiner, models, targets, framework_model, say)
    result = BenchResult(
        reference=next(iter(entries), None),
        fixed_batch=fixed,
        inputs=inputs_description,
        threads=plan.threads,
        rounds=plan.rounds,
        block_ms=plan.block_ms,
        resolution=resolution,
        pairs=pairs,
    )
    if result.reference is None:
        return result
    say(f"racing {len(entries)} pairs in {plan.rounds} rounds")
    table = run_race(entries, plan, result.reference, inputs=inputs, resolution=resolution, on_round=on_round)
    return result.replace(
        reference=table.reference,
        machine=table.machine,
        aa_deviation=table.aa_deviation,
        pairs=tuple(_with_timing(pair, table) if pair.name in entries else pair for pair in pairs),
    )


def _examined(
    examiner: TargetExaminer,
    models: Mapping[str, Path],
    targets: Sequence[BaseTarget],
    source: Path | None,
    say: Callable[[str], None],
) -> tuple[tuple[ModelOnTarget, ...], dict[str, Entry]]:
    """Return what was found of every model on every target, and those that race, by name."""
    pairs: list[ModelOnTarget] = []
    entries: dict[str, Entry] = {}
    for target in targets:
        for name in list(models)[:1] if target.model_suffixes else models:
            label = _shown(name, target, source)
            say(f"{label} on {target.name}: validating")
            pair = examiner.examine(name, target).replace(candidate=label)
            pairs.append(pair)
            if pair.status == "measured":
                entries[pair.name] = Entry.on_target(examiner.file(name, target), target)
    return tuple(pairs), entries


def _shown(name: str, target: BaseTarget, source: Path | None) -> str:
    """Return the name of a model on a target: a framework's own file has another one than the reference."""
    return (source.stem if source else "source") if target.model_suffixes else name


def _with_timing(pair: ModelOnTarget, table: RaceTable) -> ModelOnTarget:
    contender = table.contenders[pair.name]
    if pair.validation is not None and contender.error is None:
        check = repeatability_check(contender.repeatability_db)
        pair = pair.replace(validation=pair.validation.replace(checks=(*pair.validation.checks, check)))
    return pair.raced(contender, table.rows[pair.name], table.failure(pair.name))
