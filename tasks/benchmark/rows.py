"""From the rounds of a race to the rows of its table."""

import math

import numpy as np
from scipy.special import stdtrit

from tasks.benchmark.certainty import CONFIDENCE, percentile_bound, rounds_to_resolve, shift_interval, widened
from tasks.benchmark.contender import Contender
from tasks.run_report import BenchmarkRow


def rows(contender: Contender, base: Contender, *, resolution: float) -> tuple[BenchmarkRow, ...]:
    """Return a contender's rows, one a batch size at which both were measured, against the base in the same rounds.

    Args:
        contender: who was measured; may be the base itself, which is then the reference.
        base: who it is compared with; only the rounds in which both ran count.
        resolution: relative difference below which nothing is called faster or slower.
    """
    common = [batch for batch in contender.batches if batch in base.batches]
    return tuple(row(contender, base, batch, resolution=resolution) for batch in common)


def aa_deviation(control: Contender, base: Contender) -> float:
    """Return the largest distance from 1 of the speed-up of a reference over itself; NaN where neither was measured."""
    return max((abs(one.speedup - 1) for one in rows(control, base, resolution=0)), default=math.nan)


def row(contender: Contender, base: Contender, batch: int, *, resolution: float) -> BenchmarkRow:
    """Return one of them."""
    bound = math.log1p(resolution)
    times, calls = contender.round_quartiles_ms[batch], contender.calls_ms[batch]
    beside = base.round_quartiles_ms[batch][: len(times)]
    logs = np.log(beside) - np.log(times[: len(beside)])
    effect = contender.design_effect.get(batch, 1.0)
    centre, low, high = widened(shift_interval(logs), effect)
    drop = contender.dropped.get(batch)
    if drop and math.isinf(high):
        low, high = _rough_interval(logs, centre)
    if contender is base:
        verdict = "reference"
    elif (drop and drop.reason == "slower") or high < -bound:
        verdict = "slower"
    else:
        verdict = "faster" if low > bound else "not resolved"
    unsure = verdict == "not resolved" and not drop
    more = rounds_to_resolve((centre, low, high), bound, len(logs)) if unsure else None
    energy = [mj for mj in contender.energy_mj[batch] if mj is not None]
    return BenchmarkRow(
        target=contender.entry.target,
        batch=batch,
        median_ms=float(np.median(contender.round_medians_ms[batch])),
        speedup=math.exp(centre),
        speedup_low=math.exp(low),
        speedup_high=_exp(high),
        verdict=verdict,
        design_effect=effect,
        more_rounds=more,
        calls=len(calls),
        p90_ms=percentile_bound(calls, 90),
        p99_ms=percentile_bound(calls, 99),
        energy_mj=float(np.median(energy)) if energy else None,
        dropped_after_round=drop.after_round if drop else None,
        dropped_for=drop.rival if drop else None,
        dropped_as=drop.reason if drop else None,
    )


def _rough_interval(logs: np.ndarray, centre: float) -> tuple[float, float]:
    """Return Student's interval: there is no exact one of 95 % from the few rounds of a contender that was dropped."""
    reach = float(stdtrit(len(logs) - 1, (1 + CONFIDENCE) / 2) * logs.std(ddof=1)) / math.sqrt(len(logs))
    return centre - reach, centre + reach


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
