"""The schema of `report.json`. A new field keeps the schema version, a change of meaning increments it."""

from typing import Literal

from pydantic import Field

from gauntlet.core.artifact import Artifact
from gauntlet.core.frozen import Frozen, JsonObject, Number
from gauntlet.core.report import Check

CAUSE_SEPARATOR = "; because "
"""Separates, in a candidate's reason, what was measured from its cause."""


class StageEntry(Frozen):
    """One executed stage, of the main line or of one candidate."""

    stage: str
    candidate: str | None = None
    cached: bool = Field(description="result reused: the same inputs, configuration, code and packages")
    timed: bool = Field(False, description="a clock decided something, so the result is not reused")
    seconds: Number
    peak_rss_bytes: int
    facts: JsonObject
    checks: tuple[Check, ...]
    artifacts: dict[str, Artifact]


class BenchmarkRow(Frozen):
    """One candidate on one target at one batch size, against the reference in the same rounds."""

    target: str
    batch: int
    median_ms: Number = Field(description="median over rounds of the round's median latency of one call")
    speedup: Number = Field(description="pseudo-median of reference / candidate over rounds, by lower quartiles")
    speedup_low: Number = Field(description="lower end of the 95 % interval of the speed-up")
    speedup_high: Number
    verdict: Literal["faster", "slower", "not resolved", "reference"] = Field(
        description="against the reference; if `stopped_as` is 'slower', against `stopped_for`"
    )
    processes: int = Field(
        1,
        description="processes measured: one in each round, or one in all if it takes over 2 s to start",
    )
    more_rounds: int | None = Field(
        None, description="rounds that would probably resolve the comparison; None if none would"
    )
    calls: int | None = Field(None, description="timed calls in all rounds")
    mean_ms: Number | None = Field(None, description="mean latency of all timed calls")
    images_per_second: Number | None = Field(
        None, description="samples a second of one session, calls one after another: the batch size over the mean"
    )
    peak_rss_bytes: int | None = Field(
        None,
        description="peak resident memory of the process that runs the session, Python and all batch sizes included",
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
    energy_mj: Number | None = Field(None, description="per call, in millijoules, where it can be read")
    stopped_after_round: int | None = Field(None, description="the round after which it was dropped")
    stopped_for: str | None = Field(None, description="the contender that led to dropping it")
    stopped_as: Literal["slower", "no faster"] | None = Field(
        None,
        description="proven slower than `stopped_for`, or the same file in another session without an expected gain at "
        "the first batch size",
    )


class CandidateEntry(Frozen):
    """One variant of the model and its outcome."""

    name: str
    parent: str | None
    status: Literal["accepted", "rejected"]
    reason: str
    accuracy: Number | None = Field(None, description="the run's `metric` on the test samples")
    sqnr_db: Number | None = Field(None, description="signal-to-quantization-noise ratio of the outputs, in decibels")
    size_bytes: int | None = None
    artifact: Artifact | None = None
    benchmark: tuple[BenchmarkRow, ...] = ()
    target: str | None = Field(None, description="the target to deploy to: that of its first benchmark rows")
    session: dict[str, str | int | bool] | None = Field(
        None, description="settings of ONNX Runtime's SessionOptions, by name; None for another kind of target"
    )


class RunReport(Frozen):
    """A run, complete without any server."""

    schema_version: Literal[2] = 2
    run_id: str
    name: str
    started_at: str = Field(description="ISO 8601, UTC")
    verdict: Literal["passed", "failed"]
    stopped_at: str | None = Field(description="the stage that failed the run")
    reason: str = Field(description="why the winner won, or why the run stopped")
    winner: str | None
    metric: str = Field("accuracy", description="the primary metric of the problem; 1 is perfect")
    seconds: Number
    environment: JsonObject
    config: JsonObject
    links: dict[str, str] = Field(default_factory=dict, description="pages of the run in other tools")
    stages: tuple[StageEntry, ...]
    candidates: tuple[CandidateEntry, ...]

    def stage(self, name: str, candidate: str | None = None) -> StageEntry | None:
        """Return the entry of a stage, or None where it did not run."""
        return next((s for s in self.stages if s.stage == name and s.candidate == candidate), None)
