"""Shadow replay: the same requests through champion and challenger, each in processes of its own.

Quality is compared request by request, latency in an interleaved race with new processes in every round. Both ask for
proof that the challenger is no worse than a limit allows: too little data does not promote.
"""

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gauntlet.bundle.bundle import Bundle
from gauntlet.bundle.raced_session import raced_target
from gauntlet.core.arrays import NamedArrays, read_arrays, write_arrays
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.metrics.paired_accuracy import LossVerdict, PairedChange
from gauntlet.race.confidence import rounds_to_resolve
from gauntlet.race.contender import Contender, Entry, Plan
from gauntlet.race.table import RaceTable, run_race
from gauntlet.runtime.resources import usable_threads
from gauntlet.runtime.worker_client import WorkerClient, WorkerFailed
from gauntlet.targets.ort import OrtCpu, OrtTarget
from wings.lifecycle.library.promotion.quality import Quality, drop_verdict, quality_drop
from wings.lifecycle.library.promotion.replay_facts import ReplayFacts, ReplayLimits, quality_limit
from wings.lifecycle.library.promotion.replayed_requests import Requests

CHAMPION, CHALLENGER = "champion", "challenger"
REQUESTS_PER_TIMEOUT = 100


@dataclass(frozen=True)
class ReplayedModel:
    """One bundle with its inputs; the one place that decides which process runs its requests."""

    bundle: Bundle
    inputs: Path
    count: int
    batch: int
    """Samples in a request: 1, or as many as the model fixes."""
    environment: str | None = None
    """The Python environment whose ONNX Runtime runs it; None for the usual one."""

    @classmethod
    def prepare(
        cls, bundle: Bundle, requests: Requests, folder: Path, environment: str | None = None
    ) -> "ReplayedModel":
        """Write the model's inputs to a file in the folder."""
        arrays = requests.inputs_for(bundle)
        first = bundle.contract.signature.inputs[0].shape[0]
        batch = first if isinstance(first, int) else 1
        count = len(next(iter(arrays.values())))
        if count < batch:
            raise ConfigError(f"{requests.source}: fewer requests than the model's fixed batch of {batch}")
        path = folder / f"{bundle.digest}.npz"
        write_arrays(path, arrays)
        return cls(bundle, path, count, batch, environment)

    def entry(self) -> Entry:
        """Return how its process runs the model: on the target and in the session that won the bundle's run."""
        contract = self.bundle.contract
        target = raced_target(contract)
        if self.environment:
            if not isinstance(target, OrtTarget):
                raise ConfigError(f"the model won on {contract.target}, which is not a target of ONNX Runtime")
            target = target.replace(env=self.environment)
        if not isinstance(target, OrtCpu) and (why := target.unavailable()):
            raise ConfigError(f"the model won on {contract.target}, which cannot run here: {why}")
        threads = contract.threads and min(contract.threads, usable_threads())
        return replace(Entry.on_target(self.bundle.model, target), threads=threads, inputs=self.inputs)

    def outputs(self, folder: Path, threads: int, timeout_s: float) -> NamedArrays:
        """Return the outputs for all requests, one call each, from a new process."""
        entry, path = self.entry(), folder / f"{self.bundle.digest}-outputs.npz"
        try:
            with WorkerClient(entry.command) as worker:
                worker.load(*entry.request(self.inputs, threads)[:3], timeout_s, entry.options)
                request = {"do": "write_outputs", "batch": self.batch, "path": str(path)}
                worker.request(request, timeout_s * math.ceil(self.count / REQUESTS_PER_TIMEOUT))
        except WorkerFailed as error:
            raise StageError(f"{self.bundle.contract.candidate} of {self.bundle.contract.run_id}: {error}") from error
        return read_arrays(path)


def shadow_replay(
    champion: Bundle,
    challenger: Bundle,
    requests: Requests,
    limits: ReplayLimits,
    on_round: Callable[[int], None] = lambda _: None,
    must_win_on: Requests | None = None,
    environment: str | None = None,
) -> ReplayFacts:
    """Replay requests through both models and return what was measured; `on_round` gets the number of rounds done.

    `must_win_on` are labeled requests on which the challenger must be better in the problem's metric. `environment` is
    the folder of the Python environment whose ONNX Runtime runs the challenger.

    Raises:
        ConfigError: when the requests do not fit a model.
        StageError: when a model fails on them.
    """
    with tempfile.TemporaryDirectory(prefix="gauntlet-replay-") as name:
        gain = None if must_win_on is None else gain_of(champion, challenger, must_win_on, Path(name), limits)
        pair = _prepared(champion, challenger, requests, Path(name), environment)
        compared = _quality_drop(pair, requests, Path(name), limits)
        measured = _race(*pair, limits, on_round)
    change = compared.change
    quality, needed = drop_verdict(change, quality_limit(limits, labeled=requests.truth is not None))
    return ReplayFacts(
        change=change,
        scores=compared.challenger,
        champion_scores=compared.champion,
        champion=champion.digest,
        source=requests.source,
        requests=change.n,
        labeled=requests.truth is not None,
        class_drop=compared.class_drop,
        ranking=compared.ranking,
        quality=quality,
        requests_to_resolve=needed,
        gain=gain,
        gain_source=must_win_on.source if must_win_on else "",
        **latency_facts(measured, limits),
    )


def gain_of(
    champion: Bundle, challenger: Bundle, requests: Requests, folder: Path, limits: ReplayLimits
) -> PairedChange:
    """Compare both models on labeled requests on which the challenger must be better.

    Raises:
        ConfigError: when the requests have no labels, or do not fit a model.
        StageError: when a model fails on them.
    """
    if requests.truth is None:
        raise ConfigError(f"{requests.source}: a gain can only be proven on labeled requests. Fix: add labels")
    return _quality_drop(_prepared(champion, challenger, requests, folder), requests, folder, limits).change


def _prepared(
    champion: Bundle, challenger: Bundle, requests: Requests, folder: Path, environment: str | None = None
) -> tuple[ReplayedModel, ReplayedModel]:
    """Return both models with their inputs; `ConfigError` when they take batches of different sizes."""
    old = ReplayedModel.prepare(champion, requests, folder)
    new = ReplayedModel.prepare(challenger, requests, folder, environment)
    if old.batch != new.batch:
        raise ConfigError(f"the champion takes batches of {old.batch}, the challenger of {new.batch}")
    return old, new


def _quality_drop(
    pair: tuple[ReplayedModel, ReplayedModel], requests: Requests, folder: Path, limits: ReplayLimits
) -> Quality:
    threads = usable_threads()
    old, new = pair
    outputs = old.outputs(folder, threads, limits.timeout_s), new.outputs(folder, threads, limits.timeout_s)
    signatures = old.bundle.contract.signature, new.bundle.contract.signature
    return quality_drop(signatures, outputs, requests.truth)


def _race(old: ReplayedModel, new: ReplayedModel, limits: ReplayLimits, on_round: Callable[[int], None]) -> RaceTable:
    plan = Plan((new.batch,), limits.rounds, limits.block_ms, usable_threads(), limits.timeout_s, limits.seed)
    entries = {CHAMPION: old.entry(), CHALLENGER: new.entry()}
    table = run_race(entries, plan, CHAMPION, inputs=old.inputs, control=False, on_round=on_round)
    for name in entries:
        if why := table.failure(name):
            raise StageError(f"the {name} cannot be timed: {why}")
    return table


def latency_facts(table: RaceTable, limits: ReplayLimits) -> dict[str, Any]:
    """Return the fields of `ReplayFacts` on latency and memory."""
    [measured], [base] = table.rows[CHALLENGER], table.rows[CHAMPION]
    batch = measured.batch
    slowdown, high, low = (
        1 / speedup - 1 if speedup else math.inf
        for speedup in (measured.speedup, measured.speedup_low, measured.speedup_high)
    )
    rounds = len(table.contenders[CHALLENGER].round_medians_ms[batch])
    verdict: LossVerdict = "not resolved"
    if high <= limits.max_slowdown:
        verdict = "proven good"
    elif low > limits.max_slowdown:
        verdict = "proven bad"
    more = None
    if verdict == "not resolved" and math.isfinite(high):
        shifted = [math.log1p(limits.max_slowdown) - math.log1p(value) for value in (slowdown, high, low)]
        more = rounds_to_resolve((shifted[0], shifted[1], shifted[2]), 0.0, rounds)
    return {
        "batch": batch,
        "champion_ms": base.median_ms,
        "challenger_ms": measured.median_ms,
        "slowdown": slowdown,
        "slowdown_low": low,
        "slowdown_high": high,
        "latency": verdict,
        "rounds": rounds,
        "more_rounds": more,
        "timed_requests": measured.calls,
        "champion_peak_bytes": _peak_bytes(table.contenders[CHAMPION]),
        "challenger_peak_bytes": _peak_bytes(table.contenders[CHALLENGER]),
    }


def _peak_bytes(contender: Contender) -> int:
    """Return the peak memory of the median process."""
    return int(np.median(contender.round_peak_bytes or [0]))
