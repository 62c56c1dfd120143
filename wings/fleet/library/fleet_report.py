"""The result of many models, each of which ran the pipeline."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from gauntlet.core.frozen import Frozen, Number
from gauntlet.reporting.html_report import render_template


class FleetResult(Frozen):
    """What came of one model."""

    model: str = Field(description="path below the folder")
    verdict: Literal["passed", "failed", "invalid", "broke"] = Field(
        description="failed: a gate; invalid: refused before the run; broke: a stage, or the whole process"
    )
    stopped_at: str = Field("", description="the stage that ended its run")
    reason: str = Field("", description="why it did not pass")
    run_id: str | None = None
    winner: str | None = None
    speedup: Number | None = Field(None, description="of the winner against the reference, at the deciding batch size")
    speedup_low: Number | None = Field(None, description="lower end of the 95 % interval")
    speedup_high: Number | None = None
    metric: str = ""
    quality: Number | None = Field(None, description="the winner's, in `metric`")
    size_bytes: int | None = Field(None, description="of the winner's file")
    original_size_bytes: int | None = None
    seconds: Number = 0.0

    @property
    def outcome(self) -> str:
        """The verdict, with the stage where that says more."""
        return f"{self.verdict} at {self.stopped_at}" if self.stopped_at else self.verdict


class FleetReport(Frozen):
    """All models, by name."""

    schema_version: Literal[1] = 1
    fleet_id: str
    folder: str
    settings: tuple[str, ...]
    started_at: str = Field(description="ISO 8601, UTC")
    seconds: Number = Field(description="of this process; a fleet that was interrupted has taken longer")
    results: tuple[FleetResult, ...]

    @property
    def passed(self) -> tuple[FleetResult, ...]:
        """The models that passed every gate."""
        return tuple(result for result in self.results if result.verdict == "passed")

    @property
    def others(self) -> tuple[FleetResult, ...]:
        """The models that did not."""
        return tuple(result for result in self.results if result.verdict != "passed")


def render_fleet(report: FleetReport) -> str:
    """Return the page. Its links to the pages of runs hold from a fleet's folder in the home."""
    return render_template("fleet.html.j2", Path(__file__).parent, report=report)
