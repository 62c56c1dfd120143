"""The record of a run: what `report.json` holds, and what every view of a run is rendered from.

Its schema is versioned: a field may be added under the same version, a change of meaning takes the next.
"""

from typing import Literal

from pydantic import Field

from gauntlet.core.artifact import Artifact
from gauntlet.core.frozen import Frozen, JsonObject, Number
from gauntlet.core.report import Check

CAUSE_SEPARATOR = "; because "
"""Between what was measured of a candidate and its cause, in the candidate's reason."""


class StageEntry(Frozen):
    """One stage as it ran: on the main line, or for one candidate."""

    stage: str
    candidate: str | None = None
    cached: bool = Field(description="the work was not repeated: the same inputs, configuration, code and packages")
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
    speedup: Number = Field(
        description="middle over rounds of reference / candidate, of the lower quartile of each one's calls"
    )
    speedup_low: Number = Field(description="lower end of the 95 % interval of the speed-up")
    speedup_high: Number
    verdict: Literal["faster", "slower", "not resolved", "reference"] = Field(
        description="against the reference; where `stopped_as` is 'slower', against `stopped_for`"
    )
    design_effect: Number = Field(
        1.0, description="variance of a mean over that of independent rounds; the interval is wider by its root"
    )
    more_rounds: int | None = Field(None, description="so many would probably resolve what is not; None: none would")
    calls: int | None = Field(None, description="calls that were timed, in all rounds together")
    p90_ms: Number | None = Field(None, description="90 % of calls stay below, at 95 % confidence; from 29 calls on")
    p99_ms: Number | None = Field(None, description="the same of 99 %; from 299 calls on")
    energy_mj: Number | None = Field(None, description="of one call, in millijoules, where it can be read")
    stopped_after_round: int | None = Field(None, description="the race went on without it from there")
    stopped_for: str | None = Field(None, description="the contender that it left the race for")
    stopped_as: Literal["slower", "no faster"] | None = Field(
        None,
        description="proven slower than that one; or the same file in another session, with no gain to be expected at "
        "the first batch size",
    )


class CandidateEntry(Frozen):
    """One variant of the model, and what became of it."""

    name: str
    parent: str | None
    status: Literal["accepted", "rejected"]
    reason: str
    accuracy: Number | None = Field(None, description="share of right answers on the test images")
    sqnr_db: Number | None = Field(None, description="signal to quantisation noise of the outputs, in decibels")
    size_bytes: int | None = None
    artifact: Artifact | None = None
    benchmark: tuple[BenchmarkRow, ...] = ()
    target: str | None = Field(None, description="where it is to be run: the target of its first benchmark rows")
    session: dict[str, str | int | bool] | None = Field(
        None,
        description="how to open it: names and values for ONNX Runtime's SessionOptions; None on a further target",
    )


class RunReport(Frozen):
    """A whole run. It is complete without any server."""

    schema_version: Literal[2] = 2
    run_id: str
    name: str
    started_at: str = Field(description="ISO 8601, UTC")
    verdict: Literal["passed", "failed"]
    stopped_at: str | None = Field(description="the stage that ended the run, where it failed")
    reason: str = Field(description="why the winner won, or why the run stopped")
    winner: str | None
    seconds: Number
    environment: JsonObject
    config: JsonObject
    links: dict[str, str] = Field(default_factory=dict, description="where other tools show the run")
    stages: tuple[StageEntry, ...]
    candidates: tuple[CandidateEntry, ...]

    def stage(self, name: str, candidate: str | None = None) -> StageEntry | None:
        """Return the entry of a stage, or None where it did not run."""
        return next((s for s in self.stages if s.stage == name and s.candidate == candidate), None)
