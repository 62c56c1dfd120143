"""The configuration of the stage `serve`, and what it measures."""

from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.core.facts import Facts, Metrics, Section
from gauntlet.core.frozen import Frozen, JsonObject, Number
from gauntlet.reporting.text_format import milliseconds

Verdict = Literal["proven within", "proven beyond", "not resolved"]
SLACK_S = 900.0
"""What a measurement may take longer than its load."""
MIN_QUERIES = 500
"""Fewer prove nothing about a 99th percentile."""


class Objective(Frozen):
    """What the service must keep: a latency at a rate."""

    p99_ms: float = Field(gt=0, description="latency that 99 % of the requests must keep, from arrival to response")
    rate: float = Field(gt=0, description="requests per second, which arrive at random (a Poisson process)")


class ServeConfig(Frozen):
    """The load on `gauntlet serve` with the bundle of the run; without an objective, the stage is left out."""

    everyday: ClassVar = {"objective": {"p99_ms": 50, "rate": 20}}
    objective: Objective | None = Field(None, description="what the service must keep; by default nothing is served")
    min_duration_s: float = Field(10, gt=0, description="least time of the load")
    min_queries: int = Field(2000, ge=MIN_QUERIES, description="least number of requests")
    unresolved: Literal["accept", "reject"] = Field(
        "reject", description="when the objective is proven neither kept nor missed"
    )

    @property
    def timeout_s(self) -> float:
        """The time limit of the whole measurement."""
        return SLACK_S + max(self.min_duration_s, self.min_queries / self.objective.rate if self.objective else 0)


class ServingCost(Frozen):
    """One request after another on one connection, in turns with calls of the same session without a server."""

    calls: int = Field(description="timed calls of each")
    bare_p50_ms: Number = Field(description="a call of `session.run`")
    bare_p99_ms: Number
    served_p50_ms: Number = Field(description="a request, from sending it to its whole response")
    served_p99_ms: Number
    added_p50_ms: Number = Field(description="median over the turns of what serving adds to the p50")
    added_p50_low_ms: Number = Field(description="lower end of its 95 % interval")
    added_p50_high_ms: Number
    added_p99_ms: Number = Field(description="difference of the two p99")


class ServeFacts(Facts):
    """How the service kept its objective, and what it adds to the model's own time."""

    objective: Objective
    verdict: Verdict = Field(description="whether the p99's interval lies within the objective, beyond it, or neither")
    requests: int
    refused: int = Field(description="requests answered with an error, 429 among them; they count as infinitely late")
    failed: int = Field(description="requests without a response; they count as infinitely late")
    p50_ms: Number = Field(description="from the scheduled arrival of a request to its whole response")
    p99_ms: Number
    p99_low_ms: Number = Field(description="lower end of the 95 % interval")
    p99_high_ms: Number = Field(description="upper end of the 95 % interval")
    client_delay_p99_ms: Number = Field(description="p99 of how late the client itself was; part of the latencies")
    cost: ServingCost
    unmet_conditions: tuple[str, ...] = Field(description="why LoadGen itself calls the run INVALID; empty if VALID")
    figures: JsonObject = Field(description="every result of LoadGen's detailed log")

    def metrics(self) -> Metrics:
        """Return the latency of the service, and what it adds to a bare `session.run`."""
        percentiles = {"p50": self.p50_ms, "p99": self.p99_ms, "p99.low": self.p99_low_ms, "p99.high": self.p99_high_ms}
        return {f"serving.{name}_ms": value for name, value in percentiles.items()} | {
            "serving.added_p50_ms": self.cost.added_p50_ms,
            "serving.added_p99_ms": self.cost.added_p99_ms,
            "serving.unanswered": self.refused + self.failed,
        }

    def section(self) -> Section:
        """Return how the objective was kept, and what the service adds."""
        cost = self.cost
        rows = (
            ("session.run alone", milliseconds(cost.bare_p50_ms), milliseconds(cost.bare_p99_ms)),
            ("gauntlet serve", milliseconds(cost.served_p50_ms), milliseconds(cost.served_p99_ms)),
            ("added by the service", milliseconds(cost.added_p50_ms), milliseconds(cost.added_p99_ms)),
        )
        interval = f"95 % interval {milliseconds(self.p99_low_ms)} to {milliseconds(self.p99_high_ms)}"
        note = f"{self.verdict.capitalize()} the objective of p99 ≤ {milliseconds(self.objective.p99_ms)} at "
        note += f"{self.objective.rate:g} requests/s: p99 {milliseconds(self.p99_ms)}, {interval}, p50 "
        note += f"{milliseconds(self.p50_ms)}, {self.requests} requests, {self.refused} refused, {self.failed} failed."
        return Section("Serving", ("One request at a time", "p50", "p99"), rows, (note,))
