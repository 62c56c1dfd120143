"""The interleaved benchmark: one process per contender, rounds in random order, ratios within a round.

Successive calls of one process are not independent, so the round is the statistical unit: every contender runs one
block in it, in turns with the others. All run under the same state of the machine, and only the ratio to the reference
counts. Two processes of one file differ by 1 to 2 % for their whole lifetime, so all are restarted every few rounds.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic

import numpy as np

from gauntlet.benchmarking.contender import Contender, MeasuredBlock, RaceEntry, RacePlan
from gauntlet.benchmarking.design_effect import design_effect, process_generation
from gauntlet.benchmarking.early_stopping import contenders_to_stop
from gauntlet.benchmarking.machine_load import EnergyMeter, LoadMonitor, MachineLoad
from gauntlet.runtime.worker_client import WorkerClient, WorkerFailed

WARM_UP_BLOCKS = (2, 6)
"""Least and largest number of half blocks. In between, a contender is warm when a block's median is at most
`WARM_TOLERANCE` faster than the best one before it: warming up makes calls faster repeatedly, noise does not."""
WARM_TOLERANCE = 0.02
MAX_RESTART_S = 2.0
"""A model that takes longer until its first outputs keeps its process for the whole race."""
CONTROL = "A/A control"
"""The reference a second time, in its own process: the measured difference of two equal models."""


@dataclass(frozen=True)
class RaceOutcome:
    """The result of a race."""

    contenders: dict[str, Contender]
    machine: MachineLoad


def race(
    entries: Mapping[str, RaceEntry],
    inputs: Path,
    plan: RacePlan,
    *,
    keep: Sequence[str] = (),
    on_round: Callable[[int], None] | None = None,
) -> RaceOutcome:
    """Measure all entries against each other.

    Args:
        entries: by name. The same file may run under several names.
        inputs: an `.npz` file with at least as many samples as the largest batch.
        plan: settings of the race.
        keep: names that are never stopped early: the reference, and its control.
        on_round: called with the number of completed rounds.

    Returns:
        The contenders by name. `failed` holds the reason of a failure at one batch size; the others are still measured.
        `error` holds a failure that ended the contender's race. `stopped` holds early stops.
    """
    shuffle = np.random.default_rng(plan.seed)
    meter = EnergyMeter.find()
    with ExitStack() as stack:
        contenders = {
            name: Contender(name, entry, stack.enter_context(WorkerClient(entry.command)))
            for name, entry in entries.items()
        }
        generations = process_generation(plan.rounds, plan.rounds_per_process)
        everyone = list(contenders.values())
        for contender in everyone:
            _prepare(contender, stack, inputs, plan)
        spent = -sum(c.processor_seconds() for c in everyone)
        monitor = LoadMonitor()
        for done in range(1, plan.rounds + 1):
            if generations[done - 1] > generations[max(0, done - 2)]:
                _restart_workers([c for c in everyone if any(map(c.runs, plan.batch_sizes))], stack, inputs, plan)
            for batch in shuffle.permutation(plan.batch_sizes).tolist():
                running = [c for c in everyone if c.runs(batch)]
                blocks = [MeasuredBlock() for _ in running]
                for i in _turns(len(running), plan.turns, shuffle):
                    step = partial(_turn, block=blocks[i], plan=plan, meter=meter)
                    _attempt_at(running[i], batch, step, stack, inputs, plan)
                for contender, block in zip(running, blocks, strict=True):
                    if contender.runs(batch):
                        contender.add_round(batch, block)
                if plan.early_stopping:
                    _stop_early([c for c in running if c.runs(batch)], batch, keep, len(everyone), plan)
            if on_round is not None:
                on_round(done)
        spent += sum(c.processor_seconds() for c in everyone)
        _set_design_effects(contenders, generations, [*keep, *entries])
        return RaceOutcome(contenders, monitor.notes(meter, spent))


def _attempt(contender: Contender, step: Callable[[Contender], object]) -> None:
    if contender.error is None:
        try:
            step(contender)
        except WorkerFailed as error:
            contender.error = str(error)


def _attempt_at(
    contender: Contender,
    batch: int,
    step: Callable[[Contender, int], object],
    stack: ExitStack,
    inputs: Path,
    plan: RacePlan,
) -> None:
    """Run a step at one batch size. A failure ends the contender's race at that size; a dead worker is replaced."""
    if not contender.runs(batch):
        return
    try:
        step(contender, batch)
    except WorkerFailed as error:
        contender.failed[batch] = str(error)
        if len(contender.failed) == len(plan.batch_sizes):
            reasons = set(contender.failed.values())
            contender.error = reasons.pop() if len(reasons) == 1 else contender.failure
        elif not error.alive:
            _attempt(contender, lambda c: _replace(c, stack, inputs, plan))
            _attempt(contender, lambda c: c.worker.receive("load", plan.timeout_s))
            for warm in contender.warm_up_blocks:
                _attempt_at(contender, warm, partial(_half_block, plan=plan), stack, inputs, plan)


def _prepare(contender: Contender, stack: ExitStack, inputs: Path, plan: RacePlan) -> None:
    start = monotonic()

    def load(contender: Contender) -> None:
        model, samples, threads, options = contender.entry.request(inputs, plan.threads)
        contender.load_ms = float(contender.worker.load(model, samples, threads, plan.timeout_s, options)["load_ms"])

    def warm_up(contender: Contender, batch: int) -> None:
        if not contender.warm_up_blocks:
            contender.first_call_ms = contender.worker.run(batch, 0, plan.timeout_s)["samples_ms"][0]
            contender.starting_s = monotonic() - start
        least, most = WARM_UP_BLOCKS
        best, blocks = np.inf, 0
        for blocks in range(1, most + 1):
            median = _half_block(contender, batch, plan)
            if blocks >= least and median > best * (1 - WARM_TOLERANCE):
                break
            best = min(best, median)
        contender.warm_up_blocks[batch] = blocks

    _attempt(contender, load)
    for batch in plan.batch_sizes:
        contender.round_medians_ms[batch], contender.round_quartiles_ms[batch] = [], []
        contender.calls_ms[batch], contender.energy_mj[batch] = [], []
        _attempt_at(contender, batch, warm_up, stack, inputs, plan)


def _half_block(contender: Contender, batch: int, plan: RacePlan) -> float:
    return float(np.median(contender.worker.run(batch, plan.block_ms / 2, plan.timeout_s)["samples_ms"]))


def _restart_workers(running: Sequence[Contender], stack: ExitStack, inputs: Path, plan: RacePlan) -> None:
    def restart(contender: Contender) -> None:
        contender.worker.request({"do": "memory"}, plan.timeout_s)  # a worker that died or hangs is not replaced
        _replace(contender, stack, inputs, plan)

    def resume(contender: Contender) -> None:
        contender.worker.receive("load", plan.timeout_s)

    short = [contender for contender in running if contender.starting_s <= MAX_RESTART_S]
    for step in (restart, resume):  # all start and load at the same time, and nothing is timed meanwhile
        for contender in short:
            _attempt(contender, step)
    for contender in short:
        for batch in plan.batch_sizes:
            _attempt_at(contender, batch, partial(_half_block, plan=plan), stack, inputs, plan)


def _replace(contender: Contender, stack: ExitStack, inputs: Path, plan: RacePlan) -> None:
    """End the worker, start a new one and send it the load request, without waiting for the reply."""
    contender.past_processor_s += contender.worker.processor_seconds()
    contender.worker.end()
    contender.worker = stack.enter_context(WorkerClient(contender.entry.command))
    contender.worker.send_load(*contender.entry.request(inputs, plan.threads))


def _turns(contenders: int, turns: int, shuffle: np.random.Generator) -> list[int]:
    """Return the order of a round: a random permutation, its reverse, then another permutation."""
    order = list[int]()
    for turn in range(turns):
        order += order[-contenders:][::-1] if turn % 2 else shuffle.permutation(contenders).tolist()
    return order


def _turn(contender: Contender, batch: int, block: MeasuredBlock, plan: RacePlan, meter: EnergyMeter) -> None:
    before, calls = meter.read_uj(), list[float]()
    while len(calls) < plan.min_calls / plan.turns:
        left = max(0.0, plan.block_ms / plan.turns - sum(calls))
        reply = contender.worker.run(batch, left, plan.timeout_s)
        calls += reply["samples_ms"]
        contender.repeatability_db = min(contender.repeatability_db, float(reply["repeatability_db"]))
        contender.peak_rss_bytes = max(contender.peak_rss_bytes, int(reply["peak_rss_bytes"]))
    block.calls_ms += calls
    block.energies_mj.append(meter.spent_mj(before))


def _stop_early(running: list[Contender], batch: int, keep: Sequence[str], contenders: int, plan: RacePlan) -> None:
    times = {c.name: c.round_quartiles_ms[batch] for c in running}
    if not times:
        return
    judged = batch == plan.batch_sizes[0]  # this batch size decides between the session variants of a file
    usual = {c.name: c.entry.baseline for c in running if judged and c.entry.baseline}
    stops = contenders_to_stop(times, keep=keep, contenders=contenders, rounds=plan.rounds, usual=usual)
    for contender in running:
        if stop := stops.get(contender.name):
            for size in plan.batch_sizes if stop.reason == "no faster" else (batch,):
                if contender.runs(size):
                    contender.stopped[size] = replace(stop, after_round=len(contender.round_quartiles_ms[size]))


def _set_design_effects(contenders: Mapping[str, Contender], generations: Sequence[int], names: Sequence[str]) -> None:
    """Set the design effect of each batch size, from the contenders that ran in every round."""
    for batch in {batch: None for c in contenders.values() for batch in c.batches}:
        base = next((name for name in names if contenders[name].runs(batch)), None)
        if base is None:
            continue
        times = contenders[base].round_quartiles_ms[batch]
        others = [c.round_quartiles_ms[batch] for name, c in contenders.items() if name != base and c.runs(batch)]
        effect = design_effect([np.log(times) - np.log(other) for other in others], generations)
        for contender in contenders.values():
            contender.design_effect[batch] = effect
