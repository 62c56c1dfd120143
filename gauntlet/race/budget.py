"""Budgets: limits on latency, throughput, size and memory that a model must keep as it is measured."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Check
from gauntlet.core.run_report import BenchmarkRow
from gauntlet.race.confidence import CONFIDENCE

MB = 1e6
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
ByBatch = dict[PositiveInt, Positive]


@dataclass(frozen=True)
class _RowLimit:
    """A limit on one figure of a row."""

    key: str
    figure: str
    op: Literal["<=", ">="]
    unit: str
    percentile: int | None = None
    """Of a bound that needs many calls."""


ROW_LIMITS = (
    _RowLimit("max_p50_ms", "median_ms", "<=", "ms"),
    _RowLimit("max_p90_ms", "p90_ms", "<=", "ms", 90),
    _RowLimit("max_p99_ms", "p99_ms", "<=", "ms", 99),
    _RowLimit("min_images_per_second", "images_per_second", ">=", "samples/s"),
)


class Budget(Frozen):
    """Limits that the winner must keep. Those by batch size hold for a call at that size, on the winner's target.

    The fastest candidate within all of them wins, and a run in which no model is, FP32 included, fails.
    """

    everyday: ClassVar = {"max_p99_ms": {"1": 20}, "max_size_mb": 10}
    max_p50_ms: ByBatch = Field(default_factory=dict, description="highest median latency by batch size: {1: 10}")
    max_p90_ms: ByBatch = Field(default_factory=dict, description="the same of the p90 (its upper 95 % bound)")
    max_p99_ms: ByBatch = Field(default_factory=dict, description="the same of the p99 (its upper 95 % bound)")
    min_images_per_second: ByBatch = Field(
        default_factory=dict, description="least throughput of one session by batch size, calls one after another"
    )
    max_size_mb: Positive | None = Field(None, description="largest model file with its weights, in 1e6 bytes")
    max_peak_memory_mb: Positive | None = Field(
        None, description="peak memory of the process, Python included, in 1e6 bytes"
    )

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The batch sizes with a limit."""
        return tuple(sorted({batch for limit in ROW_LIMITS for batch in self._limits(limit)}))

    @property
    def least_calls(self) -> int:
        """How many calls at each batch size the limits need: for a bound of the 90th percentile 29, of the 99th 299."""
        percentiles = [limit.percentile for limit in ROW_LIMITS if limit.percentile and self._limits(limit)]
        return max((math.ceil(math.log(1 - CONFIDENCE) / math.log(p / 100)) for p in percentiles), default=1)

    def checks(self, candidate: str, rows: Sequence[BenchmarkRow], size_bytes: int) -> tuple[Check, ...]:
        """Check a candidate's rows on its target, and the size of its file; a figure that is missing does not pass."""
        return *self._row_checks(candidate, rows), *self._model_checks(candidate, rows, size_bytes)

    def _limits(self, limit: _RowLimit) -> Mapping[int, float]:
        limits: Mapping[int, float] = getattr(self, limit.key)
        return limits

    def _row_checks(self, candidate: str, rows: Sequence[BenchmarkRow]) -> Iterator[Check]:
        by_batch = {row.batch: row for row in rows}
        for limit in ROW_LIMITS:
            for batch, bound in self._limits(limit).items():
                row = by_batch.get(batch)
                value = None if row is None else getattr(row, limit.figure)
                where = f"{candidate} on {row.target} at batch {batch}" if row else f"{candidate} at batch {batch}"
                if row is not None and value is None and limit.percentile:
                    where += f": {row.calls} calls are too few for this percentile"
                elif value is None:
                    where += ": not measured"
                name, fix = f"budget.{limit.key}", f"use a faster recipe or target, or change budget.{limit.key}"
                yield Check.of(name, value, limit.op, bound, where, fix, unit=limit.unit)

    def _model_checks(self, candidate: str, rows: Sequence[BenchmarkRow], size_bytes: int) -> Iterator[Check]:
        if self.max_size_mb is not None:
            fix = "use a smaller model or recipe, or raise budget.max_size_mb"
            yield Check.of("budget.max_size_mb", size_bytes / MB, "<=", self.max_size_mb, candidate, fix, unit="MB")
        if self.max_peak_memory_mb is not None:
            peak = max((row.peak_rss_bytes for row in rows if row.peak_rss_bytes), default=None)
            value, fix = peak and peak / MB, "use a smaller model or batch size, or raise budget.max_peak_memory_mb"
            where, limit = candidate if peak else f"{candidate}: not measured", self.max_peak_memory_mb
            yield Check.of("budget.max_peak_memory_mb", value, "<=", limit, where, fix, unit="MB")


NO_BUDGET = Budget()


def over_budget(checks: Sequence[Check]) -> str:
    """Return in a few words which limits are not kept; nothing where all are."""
    texts = [
        f"{check.name.removeprefix('budget.')} {check.limit:g} {check.unit}, "
        f"measured {'nothing' if check.value is None else f'{check.value:.4g}'}"
        for check in checks
        if not check.passed
    ]
    return f"over the budget ({'; '.join(texts)})" if texts else ""
