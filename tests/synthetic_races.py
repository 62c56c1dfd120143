"""Races whose outcome is known, to test what is decided on them."""

import math
from collections.abc import Mapping

import numpy as np

from gauntlet.core.run_report import BenchmarkRow
from gauntlet.race.machine_load import MachineLoad
from tasks.benchmark.facts import BenchmarkFacts, CandidateTiming

Interval = tuple[float, float, float]
"""Lower end, estimate and upper end of a ratio to the reference."""
Outcome = Interval | str | tuple[BenchmarkRow, ...]
"""A candidate's speed-up at both batch sizes, or why it was not measured, or its rows."""


def row(batch: int, interval: Interval, *, reference: bool = False, memory: Interval | None = None) -> BenchmarkRow:
    """Return a row of a candidate; the reference takes 4 ms at every batch size."""
    low, speedup, high = interval
    verdict = "reference" if reference else "faster" if low > 1 else "slower" if high < 1 else "not resolved"
    memory_low, memory_ratio, memory_high = memory or (None, None, None)
    return BenchmarkRow(
        target="t",
        batch=batch,
        median_ms=4 / speedup,
        p90_ms=5 / speedup,
        p99_ms=6 / speedup,
        images_per_second=250 * batch * speedup,
        peak_rss_bytes=round(100e6 * (speedup if math.isfinite(speedup) else 1)),
        memory_ratio=memory_ratio,
        memory_ratio_low=memory_low,
        memory_ratio_high=memory_high,
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        verdict=verdict,
    )


def result(candidate: str, rows: tuple[BenchmarkRow, ...], error: str | None = None) -> CandidateTiming:
    """Return the measurements of a candidate."""
    raw = {r.batch: tuple(4 / r.speedup * np.geomspace(0.97, 1.03, 12)) for r in rows if r.speedup > 0}
    return CandidateTiming(
        candidate=candidate,
        error=error,
        target="t",
        rows=rows,
        load_ms=1,
        first_call_ms=1,
        peak_rss_bytes=1,
        warm_up_blocks={},
        round_medians_ms=raw,
        round_quartiles_ms=raw,
    )


def synthetic_race(
    candidates: Mapping[str, Outcome],
    aa_deviation: float = 0.01,
    *,
    at_batch_8: Interval | None = None,
    own_noise_db: Mapping[str, float] | None = None,
    sizes: Mapping[str, int] | None = None,
    control: tuple[BenchmarkRow, ...] = (),
) -> BenchmarkFacts:
    """Return a race of `fp32` and the candidates at batch sizes 1 and 8."""
    results = [result("fp32", tuple(row(b, (1, 1, 1), reference=True) for b in (1, 8)))]
    for name, outcome in candidates.items():
        if isinstance(outcome, str):
            results.append(result(name, (), error=outcome))
        elif isinstance(outcome[0], BenchmarkRow):
            results.append(result(name, outcome))
        else:
            results.append(result(name, (row(1, outcome), row(8, at_batch_8 or outcome))))
    return BenchmarkFacts(
        reference="fp32",
        threads=1,
        rounds=12,
        block_ms=10,
        resolution=0.01,
        machine=MachineLoad(load_average=(0, 0), steal_share=0, other_load_cores=0, exposed=()),
        aa_deviation=aa_deviation,
        control=control,
        results=tuple(
            r.replace(
                own_noise_db=(own_noise_db or {}).get(r.candidate, math.inf),
                size_bytes=(sizes or {}).get(r.candidate, 0),
            )
            for r in results
        ),
    )
