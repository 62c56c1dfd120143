"""Race the winner against the reference at every size, in a race each."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gauntlet.core.arrays import write_arrays
from gauntlet.core.artifact import Artifact
from gauntlet.core.facts import Facts, Section
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


class SizeSpeed(Frozen):
    """The winner's speed at one size, or in the mix."""

    reference_ms: Number = Field(description="median over rounds of the median latency of one call")
    winner_ms: Number
    speedup: Number = Field(description="pseudo-median of reference / winner over rounds, by lower quartiles")
    speedup_low: Number = Field(description="lower end of the 95 % interval")
    speedup_high: Number
    verdict: Literal["faster", "slower", "not resolved", "reference"]


class TriedSize(Frozen):
    """One size, and what was done at it."""

    size: str
    files_compared: int = Field(description="whose outputs `numerics` compared with the source's at this size")
    speed: SizeSpeed | None = Field(None, description="None without a race, or where it failed")
    failure: str = ""


class SizesFacts(Facts):
    """Which size was tried where."""

    winner: str
    sizes: tuple[TriedSize, ...] = Field(description="that of the data first")
    mix: SizeSpeed | None = Field(None, description="of one call at each size; None without a race of each")

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
            table = _race(config, workspace, models, target, batch, case)
            failure = table.failure(*models) or ""
            row = row.replace(speed=None if failure else _speed(table), failure=failure)
            tables += [] if failure else [table]
        tried.append(row)
    mix = _mixed(tables, config.resolution) if len(tables) == len(tried) else None
    facts = SizesFacts(winner=[*models][-1], sizes=tuple(tried), mix=mix)
    return Report(facts=facts, checks=_checks(facts) if raced else ())


def _race(
    config: BenchmarkConfig,
    workspace: Workspace,
    models: Mapping[str, Artifact],
    target: str,
    batch: int,
    case: GoldenCase,
) -> RaceTable:
    """Race the models on the samples of one size, in calls of `batch` if the reference does not fix it."""
    paths = {name: workspace.path(model) for name, model in models.items()}
    reference, path = next(iter(paths)), workspace.folder / "inputs.npz"
    entries = {name: Entry.on_target(file, config.target_named(target)) for name, file in paths.items()}
    entries[reference] = Entry.on_target(paths[reference], config.targets[0])
    inference = batched_inference(open_session(paths[reference], level="off"), case.inputs)
    batch = inference.batch(batch)
    arrays = {name: np.resize(array, (batch, *array.shape[1:])) for name, array in inference.samples.items()}
    write_arrays(path, arrays)
    plan = replace(config.plan((batch,)), early_stopping=False)
    return run_race(entries, plan, reference, inputs=path, control=False, resolution=config.resolution)


def _speed(table: RaceTable) -> SizeSpeed:
    (base, *_), (row, *_) = (table.rows[name] for name in _ends(table))
    figures = {name: getattr(row, name) for name in ("speedup", "speedup_low", "speedup_high", "verdict")}
    return SizeSpeed(reference_ms=base.median_ms, winner_ms=row.median_ms, **figures)


def _ends(table: RaceTable) -> tuple[str, str]:
    """Return the names of the reference and of the winner, which may be the same."""
    names = [*table.rows]
    return names[0], names[-1]


def _mixed(tables: Sequence[RaceTable], resolution: float) -> SizeSpeed:
    """Return the speed over one call at each size; the races are independent, and so are the sums of their rounds."""
    speeds, (reference, winner) = [_speed(table) for table in tables], _ends(tables[0])

    def log_sums(name: str) -> npt.NDArray[np.float64]:
        rounds = [times for table in tables for times in table.contenders[name].round_quartiles_ms.values()]
        return np.asarray(np.log(np.sum(rounds, axis=0)), np.float64)

    center, low, high = median_shift_interval(log_sums(reference) - log_sums(winner))
    low, high = low - math.log1p(resolution), high + math.log1p(resolution)
    verdict = "faster" if low > 0 else "slower" if high < 0 else "not resolved"
    return SizeSpeed.model_validate(
        {
            "reference_ms": sum(speed.reference_ms for speed in speeds),
            "winner_ms": sum(speed.winner_ms for speed in speeds),
            "speedup": math.exp(center),
            "speedup_low": math.exp(low),
            "speedup_high": math.exp(high) if high < 700 else math.inf,
            "verdict": "reference" if reference == winner else verdict,
        }
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
