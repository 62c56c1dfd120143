"""Race the winner against the reference at every size, in a race each."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from gauntlet.core.artifact import Artifact
from gauntlet.core.facts import Facts, Metrics, Section
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.report import Check, Report
from gauntlet.core.stage import stage
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import REAL, Golden, GoldenCase
from gauntlet.race.confidence import median_shift_interval
from gauntlet.race.contender import Entry
from gauntlet.race.table import RaceTable, run_race
from gauntlet.reporting import text_format as written
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from tasks.benchmark.config import BenchmarkConfig

MIX = "a call of each"
SizeVerdict = Literal["faster", "slower", "not resolved", "reference"]


class SizeSpeed(Frozen):
    """The winner's speed at one size, or in the mix."""

    reference_ms: Number = Field(description="median over rounds of the median latency of one call")
    winner_ms: Number
    speedup: Number = Field(description="pseudo-median of reference / winner over rounds, by lower quartiles")
    speedup_low: Number = Field(description="lower end of the 95 % interval")
    speedup_high: Number
    verdict: SizeVerdict


class TriedSize(Frozen):
    """One size, and what was done at it."""

    size: str
    files_compared: int = Field(description="whose outputs `numerics` compared with the source's at this size")
    batch: int | None = None
    speed: SizeSpeed | None = Field(None, description="None without a race, or where it failed")
    failure: str = ""


class SizesFacts(Facts):
    """Which size was tried where."""

    winner: str
    sizes: tuple[TriedSize, ...] = Field(description="that of the data first")
    mix: SizeSpeed | None = Field(None, description="of one call at each size; None without a race of each")

    def metrics(self) -> Metrics:
        """Return the speed-up in the mix."""
        return {} if self.mix is None else {"sizes.mix_speedup": self.mix.speedup}

    def section(self) -> Section:
        """Return the table of sizes."""
        rows = [(each.size, str(each.files_compared), *_cells(each.speed, each.failure)) for each in self.sizes]
        rows += [(MIX, "", *_cells(self.mix, ""))] if self.mix else []
        headings = ("Size", "Files compared", "Reference", self.winner, "Speed-up [95 %]", "Verdict")
        note = "All other stages use the data's own size. Files compared: by numerics. Without a race, no times."
        return Section("Sizes", headings, tuple(rows), (note,))


@stage(measured=True)
def sizes(
    config: BenchmarkConfig,
    workspace: Workspace,
    *,
    models: Mapping[str, Artifact],
    golden: Artifact,
    target: str,
    batch: int,
    compared: Mapping[str, int],
    raced: bool,
) -> Report[SizesFacts]:
    """Race at the sizes in `compared`, if they are to be `raced`; that of the data is `real`.

    `models` holds the reference, then the winner if it is another one, which runs on `target`. `compared` counts the
    files whose outputs were compared at a size. A winner that fails at a size, or is proven slower in the mix, fails
    the gate; one that is slower at a size is warned of.
    """
    tried, tables = list[TriedSize](), list[RaceTable]()
    for size, case in Golden.load(workspace.path(golden)).cases.items():
        if size not in compared:
            continue
        row = TriedSize(size="of the data" if size == REAL else size, files_compared=compared[size])
        if raced:
            size_batch, table = _race(config, workspace, models, target, batch, case)
            failure = table.failure(*models) or ""
            speed = None if failure else _speed(table)
            row = row.replace(batch=size_batch, speed=speed, failure=failure)
            tables += [] if failure else [table]
        tried.append(row)
    complete = raced and len(tables) == len(tried)
    mix = _mixed(tables, config.resolution) if complete and tables else None
    facts = SizesFacts(winner=[*models][-1], sizes=tuple(tried), mix=mix)
    return Report(facts=facts, checks=_checks(facts) if raced else ())


def _race(
    config: BenchmarkConfig,
    workspace: Workspace,
    models: Mapping[str, Artifact],
    target: str,
    batch: int,
    case: GoldenCase,
) -> tuple[int, RaceTable]:
    """Return the batch size and the race of the models on the samples of one size."""
    paths = {name: workspace.path(model) for name, model in models.items()}
    reference, inputs = next(iter(paths)), workspace.folder / "inputs.npz"
    entries = {name: Entry.on_target(path, config.target_named(target)) for name, path in paths.items()}
    entries[reference] = Entry.on_target(paths[reference], config.targets[0])
    batch = _write_inputs(paths[reference], case, batch, inputs)
    plan = replace(config.plan((batch,)), early_stopping=False)
    return batch, run_race(entries, plan, reference, inputs=inputs, control=False, resolution=config.resolution)


def _write_inputs(model: Path, case: GoldenCase, batch: int, target: Path) -> int:
    """Write the first samples; return the number of samples per call, which the model may fix."""
    inference = batched_inference(open_session(model, level="off"), case.inputs)
    batch = inference.batch(batch)
    arrays = {name: np.resize(array, (batch, *array.shape[1:])) for name, array in inference.samples.items()}
    np.savez(target, allow_pickle=False, **arrays)
    return batch


def _speed(table: RaceTable) -> SizeSpeed:
    first, last = next(iter(table.rows.values())), [*table.rows.values()][-1]
    base, row = first[0], last[0]
    return SizeSpeed(
        reference_ms=base.median_ms,
        winner_ms=row.median_ms,
        speedup=row.speedup,
        speedup_low=row.speedup_low,
        speedup_high=row.speedup_high,
        verdict=row.verdict,
    )


def _mixed(tables: Sequence[RaceTable], resolution: float) -> SizeSpeed:
    """Return the speed over one call at each size; the races are independent, and so are the sums of their rounds."""
    speeds = [_speed(table) for table in tables]
    base, winner = (
        sum(
            np.array(table.contenders[name].round_quartiles_ms[row.batch])
            for table in tables
            for row in table.rows[name]
        )
        for name in (next(iter(tables[0].rows)), [*tables[0].rows][-1])
    )
    center, low, high = median_shift_interval(np.log(base) - np.log(winner))
    bound = math.log1p(resolution)
    verdict: SizeVerdict = "faster" if low > bound else "slower" if high < -bound else "not resolved"
    return SizeSpeed(
        reference_ms=sum(speed.reference_ms for speed in speeds),
        winner_ms=sum(speed.winner_ms for speed in speeds),
        speedup=math.exp(center),
        speedup_low=math.exp(low),
        speedup_high=math.exp(high) if high < 700 else math.inf,
        verdict="reference" if len(tables[0].rows) == 1 else verdict,
    )


def _checks(facts: SizesFacts) -> tuple[Check, ...]:
    failed = [f"{each.size}: {each.failure}" for each in facts.sizes if each.failure]
    slower = [each.size for each in facts.sizes if each.speed and each.speed.verdict == "slower"]
    mix_is_slower = bool(slower) and facts.mix is not None and facts.mix.verdict == "slower"
    fix = "ship the reference (`quantize: []`, `optimize: []`), or name the sizes that count (train.lengths)"
    detail = "; ".join(slower)
    return (
        Check.of("sizes.failed", len(failed), "==", 0, "; ".join(failed), "leave the size out, or see its error"),
        Check.of("sizes.slower", len(slower), "==", 0, detail and f"at {detail}", fix, severity="warning"),
        Check.of("sizes.slower_mix", int(mix_is_slower), "==", 0, f"{facts.winner}, {MIX}", fix),
    )


def _cells(speed: SizeSpeed | None, failure: str) -> tuple[str, str, str, str]:
    if speed is None:
        return ("", "", "", f"failed: {failure}" if failure else "")
    gain = written.speedup(speed.speedup, speed.speedup_low, speed.speedup_high)
    alone = speed.verdict == "reference"
    times = written.milliseconds(speed.reference_ms), "" if alone else written.milliseconds(speed.winner_ms)
    return (*times, "" if alone else gain, speed.verdict)
