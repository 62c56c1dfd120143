"""The measurement: one process a contender, rounds in shuffled order, ratios taken inside a round.

Calls that follow one another in one session are not independent, so the round is the statistical unit: every contender
runs one block in it, in turns with the others. All meet the same state of the machine, and only the ratio to the
reference counts. Two processes of one file differ by 1 to 2 % for as long as they live, so every few rounds all are
started anew.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic

import numpy as np

from tasks.benchmark.client import WorkerClient, WorkerFailed
from tasks.benchmark.clusters import design_effect, session_of
from tasks.benchmark.contender import Block, Contender, Entry, Plan
from tasks.benchmark.elimination import leaving
from tasks.benchmark.machine import EnergyMeter, Machine, Watch

WARM_UP_BLOCKS = (2, 6)
"""At least and at most so many half blocks. Between these, a contender is warm when a block's median is no more than
`STEADY` faster than the best one before it: warming up makes calls faster, noise does not do so again and again."""
STEADY = 0.02
LONGEST_RENEWAL_S = 2.0
"""A model that takes longer to load and to answer once keeps its process for the whole race."""
CONTROL = "A/A control"
"""The reference once more, in a process of its own: what two equal models seem to differ by."""


@dataclass(frozen=True)
class Result:
    """A race that is over."""

    contenders: dict[str, Contender]
    machine: Machine


def race(
    entries: Mapping[str, Entry],
    inputs: Path,
    plan: Plan,
    *,
    keep: Sequence[str] = (),
    on_round: Callable[[int], None] | None = None,
) -> Result:
    """Measure all entries against each other.

    Args:
        entries: by name. The same file may run under several names.
        inputs: an `.npz` file with at least as many samples as the largest batch.
        plan: how.
        keep: names that run to the end: the reference, and its control.
        on_round: called with the number of rounds done.

    Returns:
        The contenders by name. One that failed at a batch size says why, and goes on at the others; one that cannot
        has an `error` and takes no further part. One that was dropped at a batch size says when, and for whom.
    """
    shuffle = np.random.default_rng(plan.seed)
    meter = EnergyMeter.find()
    with ExitStack() as stack:
        contenders = {
            name: Contender(name, entry, stack.enter_context(WorkerClient(entry.command)))
            for name, entry in entries.items()
        }
        sessions = session_of(plan.rounds, plan.rounds_per_session)
        everyone = list(contenders.values())
        for contender in everyone:
            _prepare(contender, stack, inputs, plan)
        spent = -sum(c.processor_seconds() for c in everyone)
        watch = Watch()
        for done in range(1, plan.rounds + 1):
            if sessions[done - 1] > sessions[max(0, done - 2)]:
                _renew([c for c in everyone if any(map(c.runs, plan.batch_sizes))], stack, inputs, plan)
            for batch in shuffle.permutation(plan.batch_sizes).tolist():
                running = [c for c in everyone if c.runs(batch)]
                blocks = [Block() for _ in running]
                for i in _turns(len(running), plan.turns, shuffle):
                    step = partial(_turn, block=blocks[i], plan=plan, meter=meter)
                    _attempt_at(running[i], batch, step, stack, inputs, plan)
                for contender, block in zip(running, blocks, strict=True):
                    if contender.runs(batch):
                        contender.note(batch, block)
                if plan.early_drop:
                    _drop([c for c in running if c.runs(batch)], batch, keep, len(everyone), plan)
            if on_round is not None:
                on_round(done)
        spent += sum(c.processor_seconds() for c in everyone)
        _cluster(contenders, sessions, [*keep, *entries])
        return Result(contenders, watch.notes(meter, spent))


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
    plan: Plan,
) -> None:
    """Let it do something at one batch size. A failure costs it that one, and a worker that ended is replaced."""
    if not contender.runs(batch):
        return
    try:
        step(contender, batch)
    except WorkerFailed as error:
        contender.failed[batch] = str(error)
        if len(contender.failed) == len(plan.batch_sizes):
            reasons = set(contender.failed.values())
            contender.error = reasons.pop() if len(reasons) == 1 else contender.lost
        elif not error.alive:
            _attempt(contender, lambda c: _replace(c, stack, inputs, plan))
            _attempt(contender, lambda c: c.worker.receive("load", plan.timeout_s))
            for warm in contender.warm_up_blocks:
                _attempt_at(contender, warm, partial(_half_block, plan=plan), stack, inputs, plan)


def _prepare(contender: Contender, stack: ExitStack, inputs: Path, plan: Plan) -> None:
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
            if blocks >= least and median > best * (1 - STEADY):
                break
            best = min(best, median)
        contender.warm_up_blocks[batch] = blocks

    _attempt(contender, load)
    for batch in plan.batch_sizes:
        contender.round_medians_ms[batch], contender.round_quartiles_ms[batch] = [], []
        contender.calls_ms[batch], contender.energy_mj[batch] = [], []
        _attempt_at(contender, batch, warm_up, stack, inputs, plan)


def _half_block(contender: Contender, batch: int, plan: Plan) -> float:
    return float(np.median(contender.worker.run(batch, plan.block_ms / 2, plan.timeout_s)["samples_ms"]))


def _renew(running: Sequence[Contender], stack: ExitStack, inputs: Path, plan: Plan) -> None:
    def restart(contender: Contender) -> None:
        contender.worker.ask({"do": "memory"}, plan.timeout_s)  # one that died or hangs is not replaced
        _replace(contender, stack, inputs, plan)

    def resume(contender: Contender) -> None:
        contender.worker.receive("load", plan.timeout_s)

    short = [contender for contender in running if contender.starting_s <= LONGEST_RENEWAL_S]
    for step in (restart, resume):  # all start and load at the same time, and nobody is timed meanwhile
        for contender in short:
            _attempt(contender, step)
    for contender in short:
        for batch in plan.batch_sizes:
            _attempt_at(contender, batch, partial(_half_block, plan=plan), stack, inputs, plan)


def _replace(contender: Contender, stack: ExitStack, inputs: Path, plan: Plan) -> None:
    """End the worker, start another one and let it load; nobody waits for that yet."""
    contender.past_processor_s += contender.worker.processor_seconds()
    contender.worker.end()
    contender.worker = stack.enter_context(WorkerClient(contender.entry.command))
    contender.worker.send_load(*contender.entry.request(inputs, plan.threads))


def _turns(contenders: int, turns: int, shuffle: np.random.Generator) -> list[int]:
    """Return who runs when in a round: in a drawn order, then in the reverse of it, then in another one."""
    order = list[int]()
    for turn in range(turns):
        order += order[-contenders:][::-1] if turn % 2 else shuffle.permutation(contenders).tolist()
    return order


def _turn(contender: Contender, batch: int, block: Block, plan: Plan, meter: EnergyMeter) -> None:
    before, calls = meter.read_uj(), list[float]()
    while len(calls) < plan.min_calls / plan.turns:
        left = max(0.0, plan.block_ms / plan.turns - sum(calls))
        answer = contender.worker.run(batch, left, plan.timeout_s)
        calls += answer["samples_ms"]
        contender.parity_db = min(contender.parity_db, float(answer["parity_db"]))
        contender.peak_rss_bytes = max(contender.peak_rss_bytes, int(answer["peak_rss_bytes"]))
    block.calls_ms += calls
    block.energies_mj.append(meter.spent_mj(before))


def _drop(running: list[Contender], batch: int, keep: Sequence[str], contenders: int, plan: Plan) -> None:
    times = {c.name: c.round_quartiles_ms[batch] for c in running}
    if not times:
        return
    judged = batch == plan.batch_sizes[0]  # which decides between the sessions of a file
    usual = {c.name: c.entry.usual for c in running if judged and c.entry.usual}
    drops = leaving(times, keep=keep, contenders=contenders, rounds=plan.rounds, usual=usual)
    for contender in running:
        if drop := drops.get(contender.name):
            for size in plan.batch_sizes if drop.reason == "no faster" else (batch,):
                if contender.runs(size):
                    contender.dropped[size] = replace(drop, after_round=len(contender.round_quartiles_ms[size]))


def _cluster(contenders: Mapping[str, Contender], sessions: Sequence[int], names: Sequence[str]) -> None:
    """Note what the sessions do to the ratios to the first one, by all contenders that ran in every round."""
    for batch in {batch: None for c in contenders.values() for batch in c.batches}:
        base = next((name for name in names if contenders[name].runs(batch)), None)
        if base is None:
            continue
        times = contenders[base].round_quartiles_ms[batch]
        others = [c.round_quartiles_ms[batch] for name, c in contenders.items() if name != base and c.runs(batch)]
        effect = design_effect([np.log(times) - np.log(other) for other in others], sessions)
        for contender in contenders.values():
            contender.design_effect[batch] = effect
