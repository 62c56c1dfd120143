"""The schema of `report.json`. A new field keeps the schema version, a change of meaning increments it."""

import json
import math
from functools import reduce
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError

from gauntlet.core.artifact import Artifact
from gauntlet.core.candidate import Status
from gauntlet.core.errors import ConfigError
from gauntlet.core.facts import Facts, Outcome
from gauntlet.core.frozen import Frozen, JsonObject, Number, wrong_key
from gauntlet.core.report import Check, Report

CAUSE_SEPARATOR = "; because "
"""Separates, in a candidate's reason, what was measured from its cause."""


class StageEntry(Frozen):
    """One executed stage, of the main line or of one candidate."""

    stage: str
    candidate: str | None = None
    cached: bool = Field(description="result reused: the same inputs, configuration, code and packages")
    timed: bool = Field(False, description="a clock decided something, so the result is not reused")
    unkeyed: bool = Field(False, description="a function of the user's read files, so the result is not reused")
    seconds: Number
    peak_rss_bytes: int
    facts: JsonObject
    checks: tuple[Check, ...]
    artifacts: dict[str, Artifact]
    _facts: Facts | None = PrivateAttr(None)

    @classmethod
    def of(cls, report: Report[Any]) -> Self:
        """Return the entry of a stage's report."""
        return cls.model_validate_json(report.model_dump_json()).with_facts(report.facts)

    def with_facts(self, facts: Facts) -> Self:
        """Return the entry with its facts as an object, for the page."""
        entry = self.replace(facts=json.loads(facts.model_dump_json()))
        entry._facts = facts
        return entry

    @property
    def known(self) -> Facts | None:
        """The facts as an object; None for a report that was read from a file."""
        return self._facts


class BenchmarkRow(Frozen):
    """One candidate on one target at one batch size, against the reference in the same rounds."""

    target: str
    batch: int
    median_ms: Number = Field(description="median over rounds of the round's median latency of one call")
    speedup: Number = Field(description="pseudo-median of reference / candidate over rounds, by lower quartiles")
    speedup_low: Number = Field(
        description="lower end of the 95 % interval of the speed-up; of a higher confidence in a confirmation"
    )
    speedup_high: Number
    verdict: Literal["faster", "slower", "not resolved", "reference"] = Field(
        description="against the reference; if `stopped_as` is 'slower', against `stopped_for`"
    )
    processes: int = Field(1, description="processes measured: one in each round, or one in all")
    more_rounds: int | None = Field(
        None, description="rounds that would probably resolve the comparison; None if none would"
    )
    calls: int | None = Field(None, description="timed calls in all rounds")
    mean_ms: Number | None = Field(None, description="mean latency of all timed calls")
    images_per_second: Number | None = Field(
        None, description="samples a second of one session, calls one after another"
    )
    peak_rss_bytes: int | None = Field(
        None, description="peak resident memory of the process that runs the session, Python included"
    )
    memory_ratio: Number | None = Field(
        None, description="peak memory of the reference / candidate: pseudo-median over rounds with new processes"
    )
    memory_ratio_low: Number | None = Field(None, description="lower end of its 95 % interval")
    memory_ratio_high: Number | None = None
    p90_ms: Number | None = Field(
        None, description="upper 95 % confidence bound of the 90th percentile; from 29 calls on"
    )
    p99_ms: Number | None = Field(None, description="the same for the 99th percentile; from 299 calls on")
    witness_speedup: Number | None = Field(
        None, description="by processor time of one thread, where other work disturbed the race"
    )
    stopped_after_round: int | None = Field(None, description="the round after which it was dropped")
    stopped_for: str | None = Field(None, description="the contender that led to dropping it")
    stopped_as: Literal["slower", "no faster"] | None = Field(
        None, description="proven slower than `stopped_for`, or in another session without an expected gain"
    )

    @property
    def mark(self) -> str:
        """What stands before the speed-up wherever it is shown: `~` where a witness was asked."""
        return "" if self.witness_speedup is None else "~"

    def with_witness(self, witness: "BenchmarkRow") -> Self:
        """Return this row with an interval that covers a witness's; where both are apart, with its speed-up."""
        return self.covering(witness, witness.speedup).replace(witness_speedup=witness.speedup)

    def may_equal(self, other: "BenchmarkRow", tolerance: float = 0.0) -> bool:
        """Return whether a disturbed race leaves open if this row is faster than another by more than a tolerance."""
        disturbed = bool(self.mark or other.mark)
        return disturbed and not self.speedup_low * (1 - tolerance) > other.speedup_high

    def over(self, other: "BenchmarkRow") -> tuple[float, float, float]:
        """Return the speed over another row's, and an interval for it, by the speed-ups of both over the reference."""
        high = self.speedup_high / other.speedup_low if other.speedup_low > 0 else math.inf
        return self.speedup / other.speedup, self.speedup_low / other.speedup_high, high

    def overlaps(self, other: "BenchmarkRow") -> bool:
        """Return whether the intervals of two rows have a speed-up in common."""
        return max(self.speedup_low, other.speedup_low) <= min(self.speedup_high, other.speedup_high)

    def covering(self, other: "BenchmarkRow", speedup_if_apart: float) -> Self:
        """Return this row with an interval that covers another's; where both are apart, with the given speed-up."""
        return self.replace(
            speedup=self.speedup if self.overlaps(other) else speedup_if_apart,
            speedup_low=min(self.speedup_low, other.speedup_low),
            speedup_high=max(self.speedup_high, other.speedup_high),
            verdict=self.verdict if other.verdict == self.verdict else "not resolved",
        )


class CandidateEntry(Frozen):
    """One variant of the model and its outcome."""

    name: str
    parent: str | None
    status: Status = Field(
        description="unchanged: the same work as its parent; not tried: out of time; not decided: the run ended earlier"
    )
    reason: str
    accuracy: Number | None = Field(None, description="the run's `metric` on the test samples")
    sqnr_db: Number | None = Field(None, description="signal-to-quantization-noise ratio of the outputs, in decibels")
    differences: str = Field("", description="how its predictions differ from the FP32 model's, in words")
    size_bytes: int | None = None
    artifact: Artifact | None = None
    benchmark: tuple[BenchmarkRow, ...] = Field(
        (), description="what counts: of its confirmation, alone with the reference, where it was raced again"
    )
    first_race: tuple[BenchmarkRow, ...] = Field(
        (), description="of one that was raced again: its rows in the race of all candidates"
    )
    target: str | None = Field(None, description="the target to deploy to: that of its first benchmark rows")
    session: dict[str, str | int | bool] | None = Field(
        None, description="settings of ONNX Runtime's SessionOptions, by name; None for another kind of target"
    )

    @property
    def standing(self) -> str:
        """Its status; `reference` of the model that the others are compared with."""
        return "reference" if self.parent is None else self.status

    @property
    def side_by_side(self) -> tuple[BenchmarkRow, ...]:
        """The rows that may stand beside those of other candidates: all are of the same rounds."""
        return self.first_race or self.benchmark


class RunReport(Frozen):
    """A run, complete without any server."""

    schema_version: Literal[2] = 2
    run_id: str
    name: str
    started_at: str = Field(description="ISO 8601, UTC")
    verdict: Literal["passed", "failed", "cancelled"] = Field(
        description="cancelled: a person or a signal ended it, and no gate"
    )
    stopped_at: str | None = Field(description="the stage that failed the run, or at which it was cancelled")
    reason: str = Field(description="why the winner won, or why the run stopped")
    winner: str | None
    metric: str = Field("accuracy", description="the primary metric of the problem; 1 is perfect")
    seconds: Number
    environment: JsonObject
    config: JsonObject
    links: dict[str, str] = Field(default_factory=dict, description="pages of the run in other tools")
    stages: tuple[StageEntry, ...]
    candidates: tuple[CandidateEntry, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the report in a file; raise `ConfigError` where it cannot be read, or its winner was not accepted."""
        damaged, fix = f"{path}: damaged, or of another release", "Fix: run the model again"
        try:
            report = cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise ConfigError(f"{damaged}{wrong_key(error)}. {fix}") from error
        accepted = [candidate.name for candidate in report.candidates if candidate.status == "accepted"]
        if report.winner is not None and report.winner not in accepted:
            raise ConfigError(f"{damaged} (winner: {report.winner!r}; accepted: {', '.join(accepted)}). {fix}")
        return report

    @property
    def outcome(self) -> Outcome:
        """What the stages say of the run, as far as their facts are objects: the last word of each."""
        known = (entry.known.outcome() for entry in self.stages if entry.known is not None)
        return reduce(Outcome.then, known, Outcome())

    def stage(self, name: str, candidate: str | None = None) -> StageEntry | None:
        """Return the entry of a stage, or None where it did not run."""
        return next((s for s in self.stages if s.stage == name and s.candidate == candidate), None)


def speed_metrics(rows: tuple[BenchmarkRow, ...], *, elsewhere: bool = False) -> dict[str, float | None]:
    """Return latency, speed-up, throughput and memory by batch size.

    Names of rows on another target than the first row's, and of all rows of a race elsewhere, have a prefix.
    """
    values: dict[str, float | None] = {}
    for row in rows:
        own = row.target == rows[0].target and not elsewhere
        place = f"b{row.batch}" if own else f"{row.target}.b{row.batch}"
        values |= {f"speedup.{place}": row.speedup, f"speedup.{place}.low": row.speedup_low}
        values |= {f"speedup.{place}.high": row.speedup_high, f"latency.{place}.p50_ms": row.median_ms}
        times = {"mean": row.mean_ms, "p90": row.p90_ms, "p99": row.p99_ms}
        values |= {f"latency.{place}.{name}_ms": time for name, time in times.items()}
        values[f"throughput.{place}.images_per_second"] = row.images_per_second
        values[f"memory.{place}.peak_mb"] = None if row.peak_rss_bytes is None else row.peak_rss_bytes / 1e6
    return values
