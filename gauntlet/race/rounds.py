"""The interleaved benchmark: one process per contender, rounds in random order, ratios within a round.

Successive calls of one process are not independent, so the round is the statistical unit: every contender runs one
block in it, in turns with the others. All run under the same state of the machine, and only the ratio to the reference
counts. Two processes of one file differ by 1 to 2 % for their whole lifetime, so every round has new ones: rounds that
shared a process would not be independent. What they are copied from is new in every round, too: the addresses at which
libraries lie are an accident of it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from gauntlet.race.affordable_rounds import affordable, shorter_at_further_sizes
from gauntlet.race.contender import TURNS, Contender, Entry, Plan
from gauntlet.race.early_stopping import contenders_to_stop
from gauntlet.race.machine_load import LoadMonitor, MachineLoad, is_realtime
from gauntlet.runtime.realtime import MAX_TURN_MS
from gauntlet.runtime.worker_client import WorkerClient, WorkerFailed, WorkerTemplate

WARM_UP_BLOCKS = (2, 6)
"""Least and largest number of half blocks. In between, a contender is warm when a block's median is at most
`WARM_TOLERANCE` faster than the best one before it: warming up makes calls faster repeatedly, noise does not."""
WARM_TOLERANCE = 0.02
NEARLY_QUICKEST = 1.5
"""A session variant with a condition races only where its baseline takes fewer times the quickest latency."""
LONG_CALL_MS = 40
"""Cold caches make the first call of a turn up to 0.4 ms longer; where no call is shorter than this, it counts. Such
calls take most of a race, so those of further batch sizes, which decide nothing, end halfway."""
MUCH_SLOWER = 4
"""Contenders that take more times the reference's latency get fewer calls, for that many times its time."""


def run_rounds(
    entries: Mapping[str, Entry],
    inputs: Path,
    plan: Plan,
    *,
    keep: Sequence[str] = (),
    on_round: Callable[[int], None] = lambda _: None,
    ends: Callable[[int, Mapping[str, Contender]], bool] = lambda *_: False,
) -> tuple[dict[str, Contender], MachineLoad]:
    """Measure all entries by name against each other; the same file may run under several names.

    The `.npz` file `inputs` has at least as many samples as the largest batch. The names in `keep`, the reference and
    its control, are never stopped early. `on_round` is called with the number of completed rounds; `ends` tells
    after each of them whether the race ends.

    In a contender, `failed` holds the reasons of failures by batch size; the others are still measured. `error` is a
    failure that ended the contender's race; `stopped` holds early stops.
    """
    shuffle, began = np.random.default_rng(plan.seed), monotonic()
    with ExitStack() as stack:
        runner = _Runner(inputs, plan, stack, dict.fromkeys(plan.batch_sizes, is_realtime(plan.priority)))
        contenders = runner.start({name: entry for name, entry in entries.items() if not entry.baseline})
        contenders |= runner.start(_variants(entries, contenders, plan))
        everyone = list(contenders.values())
        _set_calls(contenders[[*keep, *entries][0]], everyone, plan)
        runner.keep_turns_short(everyone)
        plan = shorter_at_further_sizes(everyone, affordable(everyone, plan, monotonic() - began))
        runner = replace(runner, plan=plan)
        spent = -sum(c.processor_seconds() for c in everyone)
        monitor = LoadMonitor()
        for done in range(1, plan.rounds + 1):
            sizes = plan.sizes_in(done)
            active = [c for c in everyone if any(map(c.runs, sizes))]
            if plan.restarts and done > 1:
                runner.restart_workers(active, sizes)
            for batch in shuffle.permutation(sizes).tolist():
                running = runner.run_round([c for c in everyone if c.runs(batch)], batch, shuffle)
                if plan.early_stopping:
                    _stop_early(running, batch, keep, len(everyone), plan)
            for contender in [c for c in active if sizes == plan.batch_sizes and all(map(c.runs, sizes))]:
                contender.round_peak_bytes.append(contender.process_peak_bytes)
            on_round(done)
            if ends(done, contenders):
                break
        spent += sum(c.processor_seconds() for c in everyone)
        return contenders, monitor.notes(spent, [size for size in plan.batch_sizes if not runner.realtime[size]])


def _variants(entries: Mapping[str, Entry], contenders: Mapping[str, Contender], plan: Plan) -> dict[str, Entry]:
    """Return the session variants that race; on a condition, those of the quickest contenders if these are quick."""
    variants = {name: entry for name, entry in entries.items() if entry.baseline}
    if plan.variants_below_ms is None:
        return variants
    batch = plan.batch_sizes[0]
    warm_ms = {name: contender.warm_ms[batch] for name, contender in contenders.items() if contender.runs(batch)}
    most_ms = min(plan.variants_below_ms, NEARLY_QUICKEST * min(warm_ms.values(), default=0.0))
    return {name: entry for name, entry in variants.items() if warm_ms.get(str(entry.baseline), math.inf) < most_ms}


def _attempt(contender: Contender, step: Callable[[Contender], object]) -> None:
    if contender.error is None:
        try:
            step(contender)
        except WorkerFailed as error:
            contender.error = str(error)


@dataclass(frozen=True)
class _Runner:
    """Runs the contenders in their workers."""

    inputs: Path
    plan: Plan
    stack: ExitStack  # ends the workers
    realtime: dict[int, bool]
    """At which batch sizes no ordinary program interrupts a turn: at one size, all contenders run alike."""

    def start(self, entries: Mapping[str, Entry]) -> dict[str, Contender]:
        """Return the entries as contenders, warm."""
        contenders = {
            name: Contender(name, entry, self.stack.enter_context(WorkerClient(entry.command)))
            for name, entry in entries.items()
        }
        for contender in contenders.values():
            self._prepare(contender)
        return contenders

    def _prepare(self, contender: Contender) -> None:
        start, plan = monotonic(), self.plan

        def load(contender: Contender) -> None:
            self._send_load(contender)
            reply = self._await_load(contender)
            contender.load_ms, contender.on_processor = float(reply["load_ms"]), reply["on_processor"]

        def warm_up(contender: Contender, batch: int) -> None:
            is_first = not contender.warm_up_blocks
            call_ms = self._call(contender, batch) if is_first or self.realtime[batch] else math.nan
            if is_first:
                contender.first_call_ms, contender.starting_s = call_ms, monotonic() - start
            if self.realtime[batch] and call_ms > MAX_TURN_MS:  # a runtime may compile within its first call
                self.realtime[batch] = self._call(contender, batch) <= MAX_TURN_MS
            least, most = WARM_UP_BLOCKS
            best, blocks = np.inf, 0
            for blocks in range(1, most + 1):
                median = self._half_block(contender, batch)
                if blocks >= least and median > best * (1 - WARM_TOLERANCE):
                    break
                best = min(best, median)
            contender.warm_up_blocks[batch], contender.warm_ms[batch] = blocks, best

        _attempt(contender, load)
        for batch in plan.batch_sizes:
            contender.round_medians_ms[batch], contender.round_quartiles_ms[batch] = [], []
            contender.calls_ms[batch] = []
            self._attempt_at(contender, batch, warm_up)

    def run_round(self, running: Sequence[Contender], batch: int, shuffle: np.random.Generator) -> list[Contender]:
        """Measure a block of each contender, in turns; return those that did not fail."""
        blocks: list[list[float]] = [[] for _ in running]
        for i in _turns(len(running), TURNS, shuffle):
            self._attempt_at(running[i], batch, partial(self._turn, calls_ms=blocks[i]))
        for contender, calls_ms in zip(running, blocks, strict=True):
            if contender.runs(batch):
                contender.add_round(batch, calls_ms)
        return [c for c in running if c.runs(batch)]

    def keep_turns_short(self, everyone: Sequence[Contender]) -> None:
        """Let others interrupt the turns at batch sizes at which one would take too long, or is another process's."""
        for batch, running in {b: [c for c in everyone if c.runs(b)] for b in self.plan.batch_sizes}.items():
            turns_ms = [c.turn_ms(batch) for c in running]
            fits = max(turns_ms, default=0) <= MAX_TURN_MS and all(c.on_processor for c in running)
            self.realtime[batch] = self.realtime[batch] and fits

    def restart_workers(self, running: Sequence[Contender], sizes: Sequence[int]) -> None:
        """Give each contender a new process, warm at these batch sizes."""

        def restart(contender: Contender) -> None:
            contender.worker.request({"do": "memory"}, self.plan.timeout_s)  # a dead or hanging worker is not replaced
            kind = contender.entry.template
            self._replace_worker(contender, templates[kind] if kind else None)

        fast = [contender for contender in running if not contender.keeps_process]
        kinds = {contender.entry.template for contender in fast}
        templates = {kind: self.stack.enter_context(WorkerTemplate(*kind)) for kind in kinds if kind}
        for step in (restart, self._await_load):  # all start and load at the same time, and nothing is timed meanwhile
            for contender in fast:
                _attempt(contender, step)
        for template in templates.values():
            fast[0].past_processor_s += template.processor_seconds()
            template.close()
        for contender in fast:
            for batch in sizes:
                if self.realtime[batch] and contender.first_call_ms > MAX_TURN_MS:
                    self._attempt_at(contender, batch, self._call)
                self._attempt_at(contender, batch, self._half_block)

    def _attempt_at(self, contender: Contender, batch: int, step: Callable[[Contender, int], object]) -> None:
        """Run a step at one batch size. A failure ends the contender's race at that size; a dead worker is replaced."""
        if not contender.runs(batch):
            return
        try:
            step(contender, batch)
        except WorkerFailed as error:
            contender.failed[batch] = str(error)
            if len(contender.failed) == len(self.plan.batch_sizes):
                reasons = set(contender.failed.values())
                contender.error = reasons.pop() if len(reasons) == 1 else contender.failure
            elif not error.alive:
                _attempt(contender, self._replace_worker)
                _attempt(contender, self._await_load)
                for warm in contender.warm_up_blocks:
                    self._attempt_at(contender, warm, self._half_block)

    def _call(self, contender: Contender, batch: int) -> float:
        """Return how long one call takes, which others may interrupt."""
        return float(contender.worker.run(batch, 0, self.plan.timeout_s)["samples_ms"][0])

    def _half_block(self, contender: Contender, batch: int) -> float:
        how = {"realtime": self.realtime[batch], "clock": self.plan.clock}
        reply = contender.worker.run(batch, self.plan.block_ms / 2, self.plan.timeout_s, **how)
        return float(np.median(reply["samples_ms"]))

    def _send_load(self, contender: Contender) -> None:
        contender.worker.send_load(*contender.entry.request(self.inputs, self.plan.threads))

    def _await_load(self, contender: Contender) -> dict[str, Any]:
        return contender.worker.receive("load", self.plan.timeout_s)

    def _replace_worker(self, contender: Contender, template: WorkerTemplate | None = None) -> None:
        """End the worker, start a new one and send it the load request, without waiting for the reply."""
        contender.past_processor_s += contender.worker.end()
        contender.worker = self.stack.enter_context(WorkerClient(contender.entry.command, template))
        contender.processes, contender.process_peak_bytes = contender.processes + 1, 0
        self._send_load(contender)

    def _turn(self, contender: Contender, batch: int, calls_ms: list[float]) -> None:
        how = {"realtime": self.realtime[batch], "clock": self.plan.clock, "untimed": contender.untimed_calls[batch]}
        reply = contender.worker.run_calls(batch, contender.calls_per_turn[batch], self.plan.timeout_s, **how)
        contender.repeatability_db = min(contender.repeatability_db, float(reply["repeatability_db"]))
        contender.add_peak(int(reply["peak_rss_bytes"]))
        calls_ms += reply["samples_ms"]


def _turns(contenders: int, turns: int, shuffle: np.random.Generator) -> list[int]:
    """Return the order of a round: a random permutation, its reverse, then another permutation."""
    order = list[int]()
    for turn in range(turns):
        order += order[-contenders:][::-1] if turn % 2 else shuffle.permutation(contenders).tolist()
    return order


def _stop_early(running: Sequence[Contender], batch: int, keep: Sequence[str], count: int, plan: Plan) -> None:
    times = {c.name: c.round_quartiles_ms[batch] for c in running}
    decides = batch == plan.batch_sizes[0]  # this batch size decides between the session variants of a file
    baselines = {c.name: c.entry.baseline for c in running if decides and c.entry.baseline}
    stops = contenders_to_stop(times, keep=keep, contenders=count, rounds=plan.rounds, baselines=baselines)
    for contender in running:
        if stop := stops.get(contender.name):
            for size in plan.batch_sizes if stop.reason == "no faster" else (batch,):
                if contender.runs(size):
                    contender.stopped[size] = replace(stop, after_round=len(contender.round_quartiles_ms[size]))


def _set_calls(reference: Contender, everyone: Sequence[Contender], plan: Plan) -> None:
    """Give all contenders as many calls in a turn as the reference needs to fill its time.

    The lower quartile of more calls is less noisy and lower, so other numbers would bias the comparison. Where the
    reference fails, the first contender that does not takes its place.
    """
    least = math.ceil(plan.min_calls / TURNS)
    for batch in plan.batch_sizes:
        running = [c for c in everyone if c.runs(batch)]
        base_ms = next((c.warm_ms[batch] for c in (reference, *running) if c.runs(batch)), math.nan)
        untimed = int(min((c.warm_ms[batch] for c in running), default=0) < LONG_CALL_MS)
        for contender in running:
            fewer = min(1.0, MUCH_SLOWER * base_ms / contender.warm_ms[batch])
            calls = math.ceil(plan.block_ms / TURNS / base_ms)
            contender.calls_per_turn[batch] = max(least, calls if fewer == 1 else int(fewer * calls))
            contender.untimed_calls[batch] = untimed
