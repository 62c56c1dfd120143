"""The measurement: one process a contender, rounds in shuffled order, ratios taken inside a round.

Calls that follow one another in one session are not independent, so the round is the statistical unit: every contender
runs once in it, all meet the same state of the machine, and only the ratio to the reference counts.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tasks.benchmark.client import WORKER, WorkerClient, WorkerFailed
from tasks.benchmark.elimination import Drop, dominated
from tasks.benchmark.machine import EnergyMeter, Machine, Watch

WARM_UP_BLOCKS = (2, 6)
"""At least and at most so many half blocks. Between these, a contender is warm when a block's median is no more than
`STEADY` faster than the best one before it: warming up makes calls faster, noise does not do so again and again."""
STEADY = 0.02
CONTROL = "A/A control"
"""The reference once more, in a process of its own: what two equal models seem to differ by."""


@dataclass(frozen=True)
class Entry:
    """One model on one target."""

    model: Path
    command: tuple[str, ...] = WORKER
    options: Mapping[str, Any] = field(default_factory=dict)
    target: str = "ort-cpu"
    threads: int | None = None
    """Instead of the plan's."""


@dataclass(frozen=True)
class Plan:
    """How a race is run."""

    batch_sizes: tuple[int, ...]
    rounds: int
    block_ms: float
    """How long a contender runs at one batch size in one round."""
    threads: int
    timeout_s: float
    """For any one answer of a worker."""
    seed: int = 0
    min_calls: int = 1
    """Calls of a block, however long they take."""
    early_drop: bool = False


@dataclass
class Contender:
    """An entry in the race and what was measured of it so far. Lists have one value a round, by batch size."""

    name: str
    entry: Entry
    worker: WorkerClient
    load_ms: float = 0.0
    first_call_ms: float = 0.0
    peak_rss_bytes: int = 0
    warm_up_blocks: dict[int, int] = field(default_factory=dict)
    round_medians_ms: dict[int, list[float]] = field(default_factory=dict)
    calls_ms: dict[int, list[float]] = field(default_factory=dict)
    """Every call of every round."""
    energy_mj: dict[int, list[float | None]] = field(default_factory=dict)
    """Of one call."""
    dropped: dict[int, Drop] = field(default_factory=dict)
    load_answer: dict[str, Any] = field(default_factory=dict)
    last_answer: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    def runs(self, batch: int) -> bool:
        """Tell whether it is still in the race at a batch size."""
        return self.error is None and batch not in self.dropped


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
        The contenders by name. One that failed has an `error` and takes no further part; one that was dropped at a
        batch size says when, and for whom.
    """
    shuffle = np.random.default_rng(plan.seed)
    meter = EnergyMeter.find()
    with ExitStack() as stack:
        contenders = {
            name: Contender(name, entry, stack.enter_context(WorkerClient(entry.command)))
            for name, entry in entries.items()
        }
        everyone = list(contenders.values())
        for contender in everyone:
            _attempt(contender, lambda c: _prepare(c, inputs, plan))
        spent = -sum(c.worker.processor_seconds() for c in everyone)
        watch = Watch()
        for done in range(1, plan.rounds + 1):
            for batch in shuffle.permutation(plan.batch_sizes).tolist():
                running = [c for c in everyone if c.runs(batch)]
                for i in shuffle.permutation(len(running)):
                    _attempt(running[i], partial(_block, batch=batch, plan=plan, meter=meter))
                if plan.early_drop:
                    _drop([c for c in running if c.error is None], batch, keep, len(everyone), plan.rounds)
            if on_round is not None:
                on_round(done)
        spent += sum(c.worker.processor_seconds() for c in everyone)
        return Result(contenders, watch.notes(meter, spent))


def _attempt(contender: Contender, step: Callable[[Contender], None]) -> None:
    if contender.error is None:
        try:
            step(contender)
        except WorkerFailed as error:
            contender.error = str(error)


def _prepare(contender: Contender, inputs: Path, plan: Plan) -> None:
    entry, worker = contender.entry, contender.worker
    threads = entry.threads or plan.threads
    contender.load_answer = worker.load(entry.model, inputs, threads, plan.timeout_s, entry.options)
    contender.load_ms = float(contender.load_answer["load_ms"])
    contender.first_call_ms = worker.run(plan.batch_sizes[0], 0, plan.timeout_s)["samples_ms"][0]
    least, most = WARM_UP_BLOCKS
    for batch in plan.batch_sizes:
        best, blocks = np.inf, 0
        for blocks in range(1, most + 1):
            median = float(np.median(worker.run(batch, plan.block_ms / 2, plan.timeout_s)["samples_ms"]))
            if blocks >= least and median > best * (1 - STEADY):
                break
            best = min(best, median)
        contender.warm_up_blocks[batch] = blocks
        for series in (contender.round_medians_ms, contender.calls_ms):
            series[batch] = []
        contender.energy_mj[batch] = []


def _block(contender: Contender, batch: int, plan: Plan, meter: EnergyMeter) -> None:
    before, calls = meter.read_uj(), list[float]()
    while len(calls) < plan.min_calls:
        left = max(0.0, plan.block_ms - sum(calls))
        contender.last_answer = contender.worker.run(batch, left, plan.timeout_s)
        calls += contender.last_answer["samples_ms"]
    energy = meter.spent_mj(before)
    contender.energy_mj[batch].append(None if energy is None else energy / len(calls))
    contender.calls_ms[batch] += calls
    contender.round_medians_ms[batch].append(float(np.median(calls)))
    contender.peak_rss_bytes = max(contender.peak_rss_bytes, int(contender.last_answer["peak_rss_bytes"]))


def _drop(running: list[Contender], batch: int, keep: Sequence[str], contenders: int, rounds: int) -> None:
    times = {c.name: c.round_medians_ms[batch] for c in running}
    if times:
        drops = dominated(times, keep=keep, contenders=contenders, rounds=rounds)
        for contender in running:
            if contender.name in drops:
                contender.dropped[batch] = drops[contender.name]
