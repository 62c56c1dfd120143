"""Who takes part in a race, how it is run, and what is noted of each."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tasks.benchmark.client import WORKER, WorkerClient
from tasks.benchmark.elimination import Drop

TURNS = 3


@dataclass(frozen=True)
class Entry:
    """One model on one target."""

    model: Path
    command: tuple[str, ...] = WORKER
    options: Mapping[str, Any] = field(default_factory=dict)
    target: str = "ort-cpu"
    threads: int | None = None
    """Instead of the plan's."""
    usual: str | None = None
    """Of a file in a further session: its name in the usual one. It leaves early without a gain on that at the first
    batch size."""

    def request(self, inputs: Path, threads: int) -> tuple[Path, Path, int, Mapping[str, Any]]:
        """Return what a worker must know to load it."""
        return self.model, inputs, self.threads or threads, self.options


@dataclass(frozen=True)
class Plan:
    """How a race is run."""

    batch_sizes: tuple[int, ...]
    rounds: int
    block_ms: float
    """How long a contender runs at one batch size in one round, all its turns together."""
    threads: int
    timeout_s: float
    """For any one answer of a worker."""
    seed: int = 0
    min_calls: int = 1
    """Calls of a block, however long they take."""
    early_drop: bool = False
    rounds_per_session: int = 3
    """At least; then every process is started anew."""

    @property
    def turns(self) -> int:
        """Parts of a block, each with a turn of its own in the round, but no more than calls.

        What slows the machine for a tenth of a second falls on all contenders then, not on one.
        """
        return min(TURNS, self.min_calls)


@dataclass
class Block:
    """What a contender does at one batch size in one round."""

    calls_ms: list[float] = field(default_factory=list)
    energies_mj: list[float | None] = field(default_factory=list)
    """One a turn; None where it cannot be read."""


@dataclass
class Contender:
    """An entry in the race and what was measured of it so far. Lists have one value a round, by batch size."""

    name: str
    entry: Entry
    worker: WorkerClient
    starting_s: float = 0.0
    """Until it has answered for the first time: with what the worker imports, and what the runtime compiles then."""
    load_ms: float = 0.0
    first_call_ms: float = 0.0
    peak_rss_bytes: int = 0
    warm_up_blocks: dict[int, int] = field(default_factory=dict)
    round_medians_ms: dict[int, list[float]] = field(default_factory=dict)
    round_quartiles_ms: dict[int, list[float]] = field(default_factory=dict)
    """The lower ones, which are compared: other work on the machine makes calls slower and never faster, so the quick
    ones tell more of the model. Where nothing disturbs, medians have the same ratios."""
    calls_ms: dict[int, list[float]] = field(default_factory=dict)
    """Every call of every round."""
    energy_mj: dict[int, list[float | None]] = field(default_factory=dict)
    """Of one call."""
    dropped: dict[int, Drop] = field(default_factory=dict)
    design_effect: dict[int, float] = field(default_factory=dict)
    """Of the race's sessions, see `tasks.benchmark.clusters`; by batch size."""
    parity_db: float = math.inf
    """Least distance between a timed answer and the first one of the same process and batch."""
    past_processor_s: float = 0.0
    """Of its processes that have ended."""
    failed: dict[int, str] = field(default_factory=dict)
    """Why it is out of the race, by batch size; what it did at the others stands."""
    error: str | None = None
    """Why it is out of the whole race."""

    def runs(self, batch: int) -> bool:
        """Tell whether it is still in the race at a batch size."""
        return self.error is None and batch not in self.dropped and batch not in self.failed

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes that it was measured at, in the plan's order."""
        return tuple(batch for batch in self.round_medians_ms if batch not in self.failed and self.error is None)

    @property
    def lost(self) -> str | None:
        """What it failed at, in one line, or None."""
        return self.error or "; ".join(f"batch {batch}: {why}" for batch, why in sorted(self.failed.items())) or None

    def note(self, batch: int, block: Block) -> None:
        """Add a round."""
        spent = [energy for energy in block.energies_mj if energy is not None]
        whole = len(spent) == len(block.energies_mj)
        self.energy_mj[batch].append(sum(spent) / len(block.calls_ms) if whole else None)
        self.calls_ms[batch] += block.calls_ms
        self.round_medians_ms[batch].append(float(np.median(block.calls_ms)))
        self.round_quartiles_ms[batch].append(float(np.quantile(block.calls_ms, 0.25)))

    def processor_seconds(self) -> float:
        """Return the processor time of all its processes so far."""
        return self.past_processor_s + self.worker.processor_seconds()
