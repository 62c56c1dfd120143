"""Any models on any targets in one race: each pair is examined first, and only what is what it says is ranked."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from tasks.benchmark.certainty import RESOLUTION
from tasks.benchmark.contender import Contender, Entry, Plan
from tasks.benchmark.machine import Machine
from tasks.benchmark.race import CONTROL, race
from tasks.benchmark.rows import aa_deviation, row
from tasks.benchmark.truth import Expected, Truth, examine, steady
from tasks.errors import StageError
from tasks.frozen import Frozen, Number
from tasks.run_report import BenchmarkRow
from tasks.statistics import Array
from tasks.targets.base import BaseTarget

Status = Literal["measured", "unavailable", "not applicable", "failed"]


class Latency(Frozen):
    """The rounds' median latencies, in milliseconds.

    How they spread says how steady the machine was, not how sure the middle is: rounds that follow one another are
    alike. What two pairs differ by is in their rows.
    """

    batch: int
    middle_ms: Number
    low_ms: Number = Field(description="5 % of the rounds were faster")
    high_ms: Number = Field(description="5 % of the rounds were slower")


class Pair(Frozen):
    """One model on one target."""

    name: str
    model: str
    target: str
    status: Status
    reason: str = Field("", description="why it was not measured, or at which batch sizes it failed, and why")
    truth: Truth | None = None
    rows: tuple[BenchmarkRow, ...] = ()
    latency: tuple[Latency, ...] = ()
    load_ms: Number = math.nan
    first_call_ms: Number = math.nan
    peak_rss_bytes: int = 0


class Comparison(Frozen):
    """The whole answer of `gauntlet bench`."""

    schema_version: Literal[1] = 1
    reference: str | None = Field(
        description="the pair that the others are compared with: the first that was measured; at a batch size that it "
        "failed at, the next one, whose row says 'reference'"
    )
    fixed_batch: int | None = Field(None, description="the only one that the first model takes, where it fixes it")
    inputs: str
    threads: int
    rounds: int
    block_ms: Number
    resolution: Number
    machine: Machine | None = None
    aa_deviation: Number = Field(
        math.nan, description="largest distance from 1 of the reference's speed-up over itself"
    )
    pairs: tuple[Pair, ...]

    @property
    def failed(self) -> tuple[Pair, ...]:
        """The pairs that ran here and are not what they say, or broke, be it at one batch size."""
        return tuple(pair for pair in self.pairs if pair.status in ("failed", "measured") and pair.reason)


def compare(
    models: Mapping[str, Path],
    targets: Sequence[BaseTarget],
    samples: Mapping[str, Array],
    folder: Path,
    plan: Plan,
    *,
    source: Path | None = None,
    told_inputs: str = "random",
    resolution: float = RESOLUTION,
    say: Callable[[str], None] = lambda _: None,
    on_round: Callable[[int], None] | None = None,
) -> Comparison:
    """Examine and race every model on every target.

    Args:
        models: ONNX files by name; the first is what the others' answers are compared with.
        targets: where to run them.
        samples: by input, each of shape (n, ...), at least as many as the largest batch.
        folder: a place for files, of this call alone.
        plan: of the race; a model that fixes its batch is measured at that one.
        source: the source framework's own file of the first model, for the targets that take it.
        told_inputs: where the samples come from.
        resolution: relative difference below which nothing is called faster or slower.
        say: told what is done, a line each.
        on_round: called with the number of rounds done.

    Raises:
        StageError: when the first model cannot be run at all.
    """
    inputs = folder / "inputs.npz"
    np.savez(inputs, allow_pickle=False, **samples)
    first, *others = models
    expected = {first: Expected.of(models[first], inputs, plan.timeout_s)}
    fixed = expected[first].fixed_batch
    plan = dataclasses.replace(plan, batch_sizes=(fixed,)) if fixed else plan
    broken: dict[str, str] = {}
    for name in others:
        try:
            expected[name] = Expected.of(models[name], inputs, plan.timeout_s, expected[first])
        except StageError as error:
            broken[name] = str(error)
    pairs: dict[str, Pair] = {}
    entries: dict[str, Entry] = {}
    for target in targets:
        say(f"{target.name}: looking whether it can run here")
        refusal = target.refuses(source)
        why_not = None if refusal else target.unavailable()
        for name, path in _files(models, target, source).items():
            pair = Pair(name=f"{name} on {target.name}", model=name, target=target.name, status="measured")
            of = first if target.sources else name
            if refusal:
                pair = pair.replace(status="not applicable", reason=refusal)
            elif why_not:
                pair = pair.replace(status="unavailable", reason=why_not)
            elif of in broken:
                pair = pair.replace(status="failed", reason=broken[of])
            else:
                say(f"{pair.name}: examining")
                pair = _examined(pair, path, target, expected[of], inputs, plan)
            pairs[pair.name] = pair
            if pair.status == "measured":
                entries[pair.name] = Entry(path, target.command(), target.options(), target.name)
    comparison = Comparison(
        reference=next(iter(entries), None),
        fixed_batch=fixed,
        inputs=told_inputs,
        threads=plan.threads,
        rounds=plan.rounds,
        block_ms=plan.block_ms,
        resolution=resolution,
        pairs=tuple(pairs.values()),
    )
    return _raced(comparison, entries, inputs, plan, say, on_round) if entries else comparison


def _files(models: Mapping[str, Path], target: BaseTarget, source: Path | None) -> dict[str, Path]:
    """Return what a target is to run: every ONNX file, or the framework's one, which may be missing."""
    return {source.stem if source else "source": source or Path()} if target.sources else dict(models)


def _examined(pair: Pair, path: Path, target: BaseTarget, expected: Expected, inputs: Path, plan: Plan) -> Pair:
    if target.stated == "int8" and not expected.quantized:
        return pair.replace(status="not applicable", reason="it takes quantised models, and this one is not")
    truth = examine(path, target, expected, inputs, threads=plan.threads, timeout_s=plan.timeout_s)
    status: Status = "failed" if truth.reason else "measured"
    return pair.replace(status=status, reason=truth.reason or "", truth=truth)


def _raced(
    comparison: Comparison,
    entries: dict[str, Entry],
    inputs: Path,
    plan: Plan,
    say: Callable[[str], None],
    on_round: Callable[[int], None] | None,
) -> Comparison:
    reference = str(comparison.reference)
    say(f"racing {len(entries)} in {plan.rounds} rounds")
    result = race({**entries, CONTROL: entries[reference]}, inputs, plan, keep=(reference, CONTROL), on_round=on_round)
    measured = result.contenders
    running = {batch: [measured[name] for name in entries if measured[name].runs(batch)] for batch in plan.batch_sizes}
    bases = {batch: found[0] for batch, found in running.items() if found}  # if the first broke, the next ran as long
    return comparison.replace(
        reference=next(iter(bases.values())).name if bases else None,
        machine=result.machine,
        aa_deviation=aa_deviation(measured[CONTROL], measured[reference]),
        pairs=tuple(
            _measured(pair, measured[pair.name], bases, comparison.resolution) if pair.name in entries else pair
            for pair in comparison.pairs
        ),
    )


def _measured(pair: Pair, contender: Contender, bases: Mapping[int, Contender], resolution: float) -> Pair:
    if contender.error:
        return pair.replace(status="failed", reason=contender.error)
    check = steady(contender.parity_db)
    if pair.truth is not None:
        pair = pair.replace(truth=pair.truth.replace(checks=(*pair.truth.checks, check)))
    if check.blocks:
        return pair.replace(status="failed", reason=str(check))
    return pair.replace(
        reason=contender.lost or "",
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
