"""Configuration of the selection: what the winner is best at, and by how much."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Check
from gauntlet.core.run_report import BenchmarkRow
from gauntlet.race.objective import Comparison, Objective, decides_by_speed, deciding_batch, memory_deviation
from tasks.benchmark.facts import BenchmarkFacts


class SelectConfig(Frozen):
    """When a candidate is selected over the reference."""

    everyday: ClassVar = {"objective": "throughput", "batch": 8, "min_speedup": 1.2}
    objective: Objective = Field("latency", description="what the winner is best at")
    batch: int = Field(1, ge=1, description="the deciding batch size; one of benchmark.batch_sizes")
    min_speedup: float = Field(1.03, ge=1, description="the lower end of the speed-up's interval must exceed this")
    min_reduction: float = Field(
        1.05, ge=1, description="for size and memory: how many times smaller than FP32 the winner must be"
    )
    tie_tolerance: float = Field(
        0.03, ge=0, lt=1, description="of candidates that are not proven worse by more, the best SQNR wins"
    )
    confirm_budget_s: float = Field(300, gt=0, description="time for these races; none begins that would end later")
    require_speedup: bool = Field(False, description="whether the run fails when no candidate is fast enough")

    @property
    def severity(self) -> Literal["error", "warning"]:
        """How severe it is that no candidate is fast enough."""
        return "error" if self.require_speedup else "warning"

    def required_ratio(self, race: BenchmarkFacts) -> float:
        """Return the ratio to exceed: the margin, or the noise where that is larger; NaN stays NaN."""
        least = self.min_speedup if decides_by_speed(self.objective) else self.min_reduction
        return float(np.maximum(least, 1 + self.noise(race)))

    def noise(self, race: BenchmarkFacts) -> float:
        """Return how far the reference is from itself at the objective, by the A/A control; a file's size is exact."""
        if decides_by_speed(self.objective):
            return race.aa_deviation
        return memory_deviation(race.control) if self.objective == "memory" else 0.0

    def deciding_batch(self, race: BenchmarkFacts) -> int:
        """Return the batch size that decides in a race."""
        return deciding_batch(self.objective, self.batch, race.reference_rows)

    def compare(self, candidate: str, row: BenchmarkRow, race: BenchmarkFacts) -> Comparison:
        """Return how a candidate compares with the reference at the objective."""
        sizes = (race.result(name).size_bytes for name in (candidate, race.reference))
        return Comparison.of(self.objective, row, *sizes)

    def check(self, proven: float, required: float, reason: str, fix: str) -> Check:
        """Return the check of the ratio by which the winner is proven better."""
        name = "select.min_speedup" if decides_by_speed(self.objective) else "select.min_reduction"
        return Check.of(name, proven, ">", required, reason, fix, unit="x", severity=self.severity)
