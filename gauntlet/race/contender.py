"""The entries of a race, its plan, and the measurements of each contender."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from gauntlet.race.early_stopping import EarlyStop
from gauntlet.runtime.worker import ENGINE, WORKER_COMMAND
from gauntlet.runtime.worker_client import WorkerClient
from gauntlet.targets.base import BaseTarget

Priority = Literal["auto", "normal", "realtime"]
TURNS = 3
"""Turns of a block in a round: a short slowdown of the machine then affects all contenders."""
MAX_RESTART_S = 2.0
"""A contender that takes longer until its first outputs keeps one process for the whole race."""


@dataclass(frozen=True)
class Entry:
    """One model on one target."""

    model: Path
    command: tuple[str, ...] = WORKER_COMMAND
    options: Mapping[str, Any] = field(default_factory=dict)
    target: str = "ort-cpu"
    threads: int | None = None
    """Overrides the plan's number of threads."""
    baseline: str | None = None
    """For a session variant: the name of the same file with the default options. The variant is stopped early if it
    does not gain on the baseline at the first batch size."""
    inputs: Path | None = None
    """Overrides the race's file of inputs, for a model whose inputs differ."""
    may_fork: bool = False
    """Whether new processes may be copies of one that has imported the engine, as those of ONNX Runtime may."""

    @classmethod
    def on_target(cls, model: Path, target: BaseTarget, baseline: str | None = None) -> Self:
        """Return the entry of a model on a target."""
        may_fork = target.may_fork
        return cls(model, target.command(), target.options(), target.name, baseline=baseline, may_fork=may_fork)

    def in_one_thread(self) -> Self:
        """Return this entry with one thread, whatever its options say."""
        options = {name: value for name, value in self.options.items() if name != "threads"}
        return replace(self, threads=1, options=options)

    @property
    def template(self) -> tuple[tuple[str, ...], str] | None:
        """The arguments of the `WorkerTemplate` of its workers, where they may have one."""
        kind = self.command, self.options.get("engine", ENGINE)
        return kind if sys.platform == "linux" and (self.may_fork or kind == (WORKER_COMMAND, ENGINE)) else None

    def request(self, inputs: Path, threads: int) -> tuple[Path, Path, int, Mapping[str, Any]]:
        """Return the arguments of a worker's load request: model, inputs, threads, options."""
        return self.model, self.inputs or inputs, self.threads or threads, self.options


@dataclass(frozen=True)
class Plan:
    """The settings of a race."""

    batch_sizes: tuple[int, ...]
    rounds: int
    block_ms: float
    """How long a contender runs at one batch size in one round, over all its turns."""
    threads: int
    timeout_s: float
    """For each reply of a worker."""
    seed: int = 0
    min_calls: int = 1
    """Least number of calls of a block, however long they take."""
    early_stopping: bool = False
    variants_below_ms: float | None = None
    """Session variants race only where a call of their baseline takes less; None: always."""
    priority: Priority = "auto"
    """Whether ordinary programs may interrupt a turn; `auto`: not where that is permitted, and no server would wait."""
    clock: Literal["wall", "processor"] = "wall"
    """What is timed: a user's time, or the processors'."""
    restarts: bool = True
    """Whether every round has new processes. Without, the interval does not cover what differs between processes."""
    limit_s: float | None = None
    """Time that the race keeps to, if it can: with fewer batch sizes, then rounds, but not below `least_rounds`."""
    least_rounds: int = 1
    further_rounds: int | None = None
    """Rounds at the batch sizes after the first, which decides the race; None: all."""

    def sizes_in(self, number: int) -> tuple[int, ...]:
        """Return the batch sizes of a round; the first round is 1."""
        return self.batch_sizes[: 1 if self.further_rounds and number > self.further_rounds else None]


@dataclass
class Contender:
    """An entry in the race and its measurements so far. Lists have one value per round, by batch size."""

    name: str
    entry: Entry
    worker: WorkerClient
    starting_s: float = 0.0
    """Time until the first outputs, including the worker's imports and what the runtime compiles."""
    load_ms: float = 0.0
    first_call_ms: float = 0.0
    on_processor: bool = True
    """Whether the worker's threads compute, and no other process or device."""
    peak_rss_bytes: int = 0
    """Of all its processes."""
    process_peak_bytes: int = 0
    """Peak memory of its current process."""
    round_peak_bytes: list[int] = field(default_factory=list)
    """Peak memory of each round's process, after all batch sizes, where the round had all."""
    warm_up_blocks: dict[int, int] = field(default_factory=dict)
    warm_ms: dict[int, float] = field(default_factory=dict)
    """Median of its fastest half block of the warm-up."""
    round_medians_ms: dict[int, list[float]] = field(default_factory=dict)
    round_quartiles_ms: dict[int, list[float]] = field(default_factory=dict)
    """Lower quartiles, which are compared: what interrupts a call now and then makes it slower, so fast calls say more
    about the model. Other work that shares the processors all the time biases both; see `gauntlet.runtime.realtime`."""
    calls_ms: dict[int, list[float]] = field(default_factory=dict)
    """Every call of every round."""
    stopped: dict[int, EarlyStop] = field(default_factory=dict)
    calls_per_turn: dict[int, int] = field(default_factory=dict)
    """By batch size; the same for all contenders but much slower ones."""
    untimed_calls: dict[int, int] = field(default_factory=dict)
    """Before those of a turn, by batch size: one, or none where calls are long; the same for all contenders."""
    repeatability_db: float = math.inf
    """Least SQNR of timed outputs against the first ones of the same process and batch size."""
    processes: int = 1
    """Number of processes so far."""
    past_processor_s: float = 0.0
    """Processor time of its processes that have ended."""
    failed: dict[int, str] = field(default_factory=dict)
    """Why it failed, by batch size; measurements at other batch sizes remain valid."""
    error: str | None = None
    """Why it failed in the whole race."""

    def runs(self, batch: int) -> bool:
        """Return whether it is still in the race at a batch size."""
        return self.error is None and batch not in self.stopped and batch not in self.failed

    @property
    def keeps_process(self) -> bool:
        """Whether it is too slow to start to get a new process in every round."""
        return self.starting_s > MAX_RESTART_S

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes at which it was measured, in the plan's order."""
        return tuple(batch for batch in self.round_medians_ms if batch not in self.failed and self.error is None)

    @property
    def failure(self) -> str | None:
        """Why it failed, in one line, or None."""
        return self.error or "; ".join(f"batch {batch}: {why}" for batch, why in sorted(self.failed.items())) or None

    def turn_ms(self, batch: int) -> float:
        """Return about how long a turn takes."""
        return (self.calls_per_turn[batch] + self.untimed_calls[batch]) * self.warm_ms[batch]

    def add_round(self, batch: int, calls_ms: list[float]) -> None:
        """Add the calls of a round."""
        self.calls_ms[batch] += calls_ms
        self.round_medians_ms[batch].append(float(np.median(calls_ms)))
        self.round_quartiles_ms[batch].append(float(np.quantile(calls_ms, 0.25)))

    def add_peak(self, peak_bytes: int) -> None:
        """Add the peak memory that its process has reached."""
        self.process_peak_bytes = max(self.process_peak_bytes, peak_bytes)
        self.peak_rss_bytes = max(self.peak_rss_bytes, peak_bytes)

    def processor_seconds(self) -> float:
        """Return the processor time of all its processes so far."""
        return self.past_processor_s + self.worker.processor_seconds()
