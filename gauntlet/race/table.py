"""One race: every entry against the reference and its A/A control, in the same rounds."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from gauntlet.core.run_report import BenchmarkRow
from gauntlet.race.confidence import CONFIDENCE
from gauntlet.race.contender import Contender, Entry, Plan
from gauntlet.race.halfway_look import HalfwayLook
from gauntlet.race.machine_load import MachineLoad
from gauntlet.race.rounds import run_rounds
from gauntlet.race.rows import row, rows
from gauntlet.race.target_validation import repeatability_check

CONTROL = "A/A control"
"""The reference a second time, in its own process: the measured difference of two equal models."""


@dataclass(frozen=True)
class RaceTable:
    """What a race measured, by the names of its entries."""

    rows: Mapping[str, tuple[BenchmarkRow, ...]]
    """Against the reference, at each batch size at which both were measured; none without repeatable outputs."""
    control: tuple[BenchmarkRow, ...]
    """Of the A/A control; none without one, or where it or the reference failed."""
    aa_deviation: float
    """Largest distance from 1 of the control's speed-up over the reference; NaN if not measured."""
    machine: MachineLoad
    failures: Mapping[str, str]
    """Why an entry or the control failed, in the whole race or at some batch sizes, or is not repeatable."""
    contenders: Mapping[str, Contender]
    """Everything that was measured; `CONTROL` among them."""

    reference: str | None
    """The entry that the others are compared with: where the one of the call failed, the first that did not."""
    rounds: int
    """How many there were."""

    @property
    def reference_rows(self) -> tuple[BenchmarkRow, ...]:
        """The rows of the reference."""
        return self.rows[self.reference] if self.reference else ()

    def failure(self, *names: str) -> str | None:
        """Return why the first of these failed that did, or None."""
        return next((self.failures[name] for name in names if name in self.failures), None)


def run_race(
    entries: Mapping[str, Entry],
    plan: Plan,
    reference: str,
    *,
    inputs: Path,
    control: bool = True,
    resolution: float = 0.0,
    confidence: float = CONFIDENCE,
    required_speedup: float | None = None,
    on_round: Callable[[int], None] = lambda _: None,
) -> RaceTable:
    """Measure all entries against each other, and compare them with the reference, which is one of them.

    The reference and its control are never stopped early. Where the reference fails at a batch size, rows there compare
    with the first entry that ran.

    Args:
        entries: by name; the same file may run under several names.
        plan: settings of the race.
        reference: name of an entry.
        inputs: a `.npz` file with at least as many samples as the largest batch.
        control: whether the reference runs twice.
        resolution: relative difference of two races of the same files; each end of an interval is wider by it.
        confidence: of the intervals.
        required_speedup: ends the race halfway where all speed-ups are known well by then, and on which side of this.
        on_round: called with the number of completed rounds.
    """
    keep = (reference, CONTROL) if control else (reference,)
    raced = {**entries, CONTROL: entries[reference]} if control else entries
    required = required_speedup and required_speedup * (1 + resolution)
    look = HalfwayLook.of(plan.rounds, confidence, required) if plan.limit_s is None else None
    ends = partial(look.ends, reference=reference) if look else lambda *_: False
    contenders, machine = run_rounds(raced, inputs, plan, keep=keep, on_round=on_round, ends=ends)
    done = max((len(times) for c in contenders.values() for times in c.round_medians_ms.values()), default=0)
    if look is not None:
        confidence = look.early if done < plan.rounds else look.late
    in_order = [contenders[name] for name in (reference, *entries) if name in contenders]
    running = {batch: [contender for contender in in_order if contender.runs(batch)] for batch in plan.batch_sizes}
    bases = {batch: still[0] for batch, still in running.items() if still}

    def rows_of(contender: Contender) -> Iterator[BenchmarkRow]:
        if repeatability_check(contender.repeatability_db).passed:
            for batch in [batch for batch in contender.batches if batch in bases]:
                yield row(contender, bases[batch], batch, resolution=resolution, confidence=confidence)

    base, twin = contenders[reference], contenders.get(CONTROL)
    of_twin = rows(twin, base, resolution=resolution) if twin else ()
    table = RaceTable(
        rows={name: tuple(rows_of(contenders[name])) for name in entries if name in contenders},
        control=of_twin,
        aa_deviation=max((abs(each.speedup - 1) for each in of_twin), default=math.nan),
        machine=machine,
        failures={name: why for name, contender in contenders.items() if (why := _failure(contender))},
        contenders=contenders,
        reference=next((base.name for base in bases.values()), None),
        rounds=done,
    )
    if plan.clock == "processor" or not machine.is_disturbed(plan.threads):
        return table
    return _with_witness(table, entries, plan, reference, inputs, resolution=resolution, confidence=confidence)


def _with_witness(
    table: RaceTable, entries: Mapping[str, Entry], plan: Plan, reference: str, inputs: Path, **intervals: Any
) -> RaceTable:
    """Return a disturbed race with what the processor time of one thread says of the entries that seem faster."""
    faster = {name for name, measured in table.rows.items() if any(row.verdict == "faster" for row in measured)}
    faster = {name for name in faster if table.contenders[name].on_processor}
    alone = {name: entries[name].in_one_thread() for name in entries if name in {reference, *faster}}
    sizes = plan.batch_sizes if table.machine.is_stolen else table.machine.exposed
    calm = replace(plan, batch_sizes=sizes, threads=1, clock="processor", priority="normal")
    calm = replace(calm, early_stopping=False, variants_below_ms=None)
    witness = run_race(alone, calm, reference, inputs=inputs, control=False, **intervals)
    return replace(table, rows={name: _witnessed(of, witness.rows.get(name, ())) for name, of in table.rows.items()})


def _witnessed(measured: tuple[BenchmarkRow, ...], witness: tuple[BenchmarkRow, ...]) -> tuple[BenchmarkRow, ...]:
    """Return rows whose intervals cover what a witness says at the same batch size, where it was asked.

    The processor time of one thread is hardly longer where others interrupt it. Where the two intervals do not overlap,
    the wall clock's figure is biased, and the witness's takes its place.
    """
    others = {row.batch: row for row in witness if row.verdict != "reference"}
    return tuple(row.with_witness(others[row.batch]) if row.batch in others else row for row in measured)


def _failure(contender: Contender) -> str | None:
    check = repeatability_check(contender.repeatability_db)
    return contender.failure or (None if check.passed else str(check))
