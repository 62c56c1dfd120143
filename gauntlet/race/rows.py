"""Turn the rounds of a race into the rows of its table."""

import math

import numpy as np
from scipy.special import stdtrit

from gauntlet.core.run_report import BenchmarkRow
from gauntlet.race.confidence import CONFIDENCE, median_shift_interval, percentile_bound, rounds_to_resolve
from gauntlet.race.contender import Contender

ONE_PROCESS = 0.02
"""Added to each end of the interval, as a logarithm, where one pair of processes ran all rounds, which do not show how
processes of one file differ: twice the deviation that `tests/simulated_races.py` assumes for pairs of them."""


def rows(
    contender: Contender, base: Contender, *, resolution: float, confidence: float = CONFIDENCE
) -> tuple[BenchmarkRow, ...]:
    """Return a contender's rows against a base, one per batch size at which both were measured.

    Only rounds in which both ran count. The intervals have the `confidence`, and are wider by the `resolution`, a
    relative difference, at each end. The verdict of the base itself is `reference`.
    """
    common = [batch for batch in contender.batches if batch in base.batches]
    return tuple(row(contender, base, batch, resolution=resolution, confidence=confidence) for batch in common)


def row(
    contender: Contender, base: Contender, batch: int, *, resolution: float, confidence: float = CONFIDENCE
) -> BenchmarkRow:
    """Return a contender's row at one batch size; the arguments are those of `rows`."""
    times, calls = contender.round_quartiles_ms[batch], contender.calls_ms[batch]
    base_times = base.round_quartiles_ms[batch][: len(times)]
    logs = np.log(base_times) - np.log(times[: len(base_times)])
    center, low, high = median_shift_interval(logs, confidence)
    if contender.keeps_process or base.keeps_process:
        low, high = low - ONE_PROCESS, high + ONE_PROCESS
    stop = contender.stopped.get(batch)
    if stop and math.isinf(high):  # the few rounds of a stopped contender allow no exact interval: Student's
        reach = float(stdtrit(len(logs) - 1, (1 + confidence) / 2) * logs.std(ddof=1)) / math.sqrt(len(logs))
        low, high = center - reach, center + reach
    bound = 0.0 if contender is base else math.log1p(resolution)
    of_rounds, low, high = (center, low, high), low - bound, high + bound
    if contender is base:
        verdict = "reference"
    elif (stop and stop.reason == "slower") or high < 0:
        verdict = "slower"
    else:
        verdict = "faster" if low > 0 else "not resolved"
    unsure = verdict == "not resolved" and not stop
    memory, memory_low, memory_high = _memory_ratio(contender, base, confidence)
    return BenchmarkRow(
        target=contender.entry.target,
        batch=batch,
        median_ms=float(np.median(contender.round_medians_ms[batch])),
        speedup=math.exp(center),
        speedup_low=math.exp(low),
        speedup_high=math.exp(high) if high < 700 else math.inf,
        verdict=verdict,
        processes=min(contender.processes, len(times)),  # those of the rounds at this batch size
        more_rounds=rounds_to_resolve(of_rounds, bound, len(logs)) if unsure else None,
        calls=len(calls),
        mean_ms=float(np.mean(calls)),
        images_per_second=1000 * batch / float(np.mean(calls)),
        peak_rss_bytes=contender.peak_rss_bytes or None,
        memory_ratio=memory,
        memory_ratio_low=memory_low,
        memory_ratio_high=memory_high,
        p90_ms=percentile_bound(calls, 90),
        p99_ms=percentile_bound(calls, 99),
        stopped_after_round=stop.after_round if stop else None,
        stopped_for=stop.compared_with if stop else None,
        stopped_as=stop.reason if stop else None,
    )


def _memory_ratio(
    contender: Contender, base: Contender, confidence: float
) -> tuple[float | None, float | None, float | None]:
    """Return base / contender of the peak memory with its interval; nothing where a process ran several rounds.

    A peak only rises while a process lives, so rounds that share one say nothing about how processes differ.
    """
    pairs = [pair for pair in zip(base.round_peak_bytes, contender.round_peak_bytes, strict=False) if all(pair)]
    if not pairs or min(base.processes, contender.processes) < len(pairs):
        return None, None, None
    center, low, high = median_shift_interval(np.log([own / other for own, other in pairs]), confidence)
    return math.exp(center), math.exp(low), math.exp(high) if high < 700 else math.inf
