"""Objectives of a selection: what the winner shall be best at, and what proves that a candidate is better at it.

Latency and throughput are compared by the interval of the speed-up, memory by that of the peaks of the same rounds. A
file's size has no noise. A smaller file, or a process with less memory, must also not be proven slower.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from gauntlet.core.run_report import BenchmarkRow

Objective = Literal["latency", "throughput", "size", "memory"]

BETTER: dict[Objective, str] = {
    "latency": "faster",
    "throughput": "faster",
    "size": "smaller",
    "memory": "lower in memory",
}
BEST: dict[Objective, str] = {
    "latency": "fastest",
    "throughput": "fastest",
    "size": "smallest",
    "memory": "lowest in memory",
}
EQUALLY: dict[Objective, str] = {"latency": "fast", "throughput": "fast", "size": "small", "memory": "memory-efficient"}


def decides_by_speed(objective: Objective) -> bool:
    """Return whether the objective is a matter of speed alone."""
    return objective in ("latency", "throughput")


@dataclass(frozen=True)
class Comparison:
    """How a candidate compares with the reference in the objective."""

    objective: Objective
    row: BenchmarkRow
    """At the deciding batch size."""
    ratio: float
    """How many times better than the reference it is."""
    low: float
    """Lower end of the 95 % interval of the ratio."""
    high: float

    @classmethod
    def of(cls, objective: Objective, row: BenchmarkRow, size_bytes: int, reference_bytes: int) -> Self:
        """Return the standing of the candidate that a row belongs to; a ratio is NaN where nothing was measured."""
        if decides_by_speed(objective):
            ratios = (row.speedup, row.speedup_low, row.speedup_high)
        elif objective == "size":
            ratios = (reference_bytes / size_bytes if size_bytes else math.nan,) * 3
        elif row.memory_ratio is None or row.memory_ratio_low is None or row.memory_ratio_high is None:
            ratios = (math.nan,) * 3
        else:
            ratios = (row.memory_ratio, row.memory_ratio_low, row.memory_ratio_high)
        return cls(objective, row, *ratios)

    @property
    def is_slower(self) -> bool:
        """Whether the candidate is proven slower, which excludes it whatever the objective is."""
        return self.row.verdict == "slower" or self.row.stopped_as is not None

    def beats(self, required: float) -> bool:
        """Return whether the candidate is proven better than the reference by more than the required ratio."""
        return self.row.verdict != "reference" and not self.is_slower and self.low > required

    @property
    def proven(self) -> float:
        """The ratio that is proven: none (1) for a candidate that is slower, where speed is not the objective."""
        return 1.0 if self.is_slower and not decides_by_speed(self.objective) else self.low

    @property
    def measured(self) -> str:
        """What was measured, in a few words."""
        speed = f"{speedup_text(self.row)} at batch {self.row.batch}"
        return speed if decides_by_speed(self.objective) else f"{self.gain}, {speed}"

    @property
    def gain(self) -> str:
        """How much smaller, or lower in memory, the candidate is, in a few words."""
        if self.objective == "size":
            return f"{self.ratio:.2f}x smaller"
        return f"{self.ratio:.2f}x [{self.low:.2f}, {self.high:.2f}] less peak memory"

    def reason(self, reference: str, note: str) -> str:
        """Return why the candidate was selected, in one line."""
        speed, batch = speedup_text(self.row), self.row.batch
        if self.objective == "latency":
            return f"{speed} the speed of {reference} at batch {batch}{note}"
        if self.objective == "throughput":
            return f"objective throughput: {speed} the samples a second of {reference} at batch {batch}{note}"
        return f"objective {self.objective}: {self.gain} than {reference}, {speed} its speed at batch {batch}{note}"


def deciding_batch(objective: Objective, batch: int, reference: Sequence[BenchmarkRow]) -> int:
    """Return the batch size that decides.

    For throughput, that is where the reference processes most samples a second: a candidate proven faster there
    exceeds the reference at every batch size. For other objectives it is `batch`, or the only one measured. The rows
    are of the reference in its default session.
    """
    sizes = [row.batch for row in reference]
    if objective == "throughput" and sizes:
        return max(reference, key=lambda row: row.images_per_second or 0).batch
    return batch if batch in sizes or len(sizes) != 1 else sizes[0]


def memory_deviation(control: Sequence[BenchmarkRow]) -> float:
    """Return the distance from 1 of the reference's peak memory over its own, by the rows of the A/A control."""
    return max((abs(row.memory_ratio - 1) for row in control if row.memory_ratio is not None), default=0.0)


def speedup_text(row: BenchmarkRow) -> str:
    """Return a row's speed-up with its interval."""
    return f"{row.mark}{row.speedup:.2f}x [{row.speedup_low:.2f}, {row.speedup_high:.2f}]"
