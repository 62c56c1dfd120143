"""The measurement: one process a contender, rounds in shuffled order, ratios taken inside a round.

Calls that follow one another in one session are not independent, so the round is the statistical unit: every contender
runs once in it, all meet the same state of the machine, and only the ratio to the reference counts.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from tasks.benchmark.client import WorkerClient, WorkerFailed

WARM_UP_BLOCKS = 2


@dataclass
class Contender:
    """One model in the race and what was measured of it so far."""

    name: str
    model: Path
    worker: WorkerClient
    load_ms: float = 0.0
    first_call_ms: float = 0.0
    peak_rss_bytes: int = 0
    round_medians_ms: dict[int, list[float]] = field(default_factory=dict)
    error: str | None = None


def race(
    models: Mapping[str, Path],
    inputs: Path,
    *,
    batch_sizes: tuple[int, ...],
    rounds: int,
    block_ms: float,
    threads: int,
    timeout_s: float,
    seed: int,
    on_round: Callable[[int], None],
) -> dict[str, Contender]:
    """Measure all models against each other.

    Args:
        models: file by name. The same file may run under several names.
        inputs: an `.npz` file with at least as many samples as the largest batch.
        batch_sizes: each is measured in every round.
        rounds: how often every contender runs.
        block_ms: how long a contender runs at one batch size in one round.
        threads: of each session.
        timeout_s: for any one answer of a worker.
        seed: of the shuffling.
        on_round: called with the number of rounds done.

    Returns:
        The contenders by name. One that failed has an `error` and takes no further part.
    """
    shuffle = np.random.default_rng(seed)
    with ExitStack() as stack:
        contenders = [Contender(name, path, stack.enter_context(WorkerClient())) for name, path in models.items()]
        for contender in contenders:
            _attempt(contender, lambda c: _prepare(c, inputs, batch_sizes, block_ms, threads, timeout_s))
        for done in range(rounds):
            for batch in shuffle.permutation(batch_sizes).tolist():
                for i in shuffle.permutation(len(contenders)):
                    _attempt(contenders[i], partial(_block, batch=batch, block_ms=block_ms, timeout_s=timeout_s))
            on_round(done + 1)
        return {contender.name: contender for contender in contenders}


def _attempt(contender: Contender, step: Callable[[Contender], None]) -> None:
    if contender.error is None:
        try:
            step(contender)
        except WorkerFailed as error:
            contender.error = str(error)


def _prepare(
    contender: Contender, inputs: Path, batch_sizes: tuple[int, ...], block_ms: float, threads: int, timeout_s: float
) -> None:
    contender.load_ms = contender.worker.load(contender.model, inputs, threads, timeout_s)
    contender.first_call_ms = contender.worker.run(batch_sizes[0], 0, timeout_s)["samples_ms"][0]
    for batch in batch_sizes:
        contender.round_medians_ms[batch] = []
        for _ in range(WARM_UP_BLOCKS):
            contender.worker.run(batch, block_ms, timeout_s)


def _block(contender: Contender, batch: int, block_ms: float, timeout_s: float) -> None:
    answer = contender.worker.run(batch, block_ms, timeout_s)
    contender.round_medians_ms[batch].append(float(np.median(answer["samples_ms"])))
    contender.peak_rss_bytes = max(contender.peak_rss_bytes, int(answer["peak_rss_bytes"]))
