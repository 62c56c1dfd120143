"""The configuration of the stage `serve`, and what it measures."""

from typing import Literal, Self

from pydantic import Field, model_validator

from gauntlet.core.frozen import Frozen, JsonObject, Number

Verdict = Literal["proven within", "proven beyond", "not resolved"]
LEAST_QUERIES = 500
"""Fewer prove nothing about a 99th percentile."""


class Objective(Frozen):
    """What the service must keep: a latency at a rate."""

    p99_ms: float = Field(gt=0, description="latency that 99 % of the requests must keep, from arrival to response")
    rate: float = Field(gt=0, description="requests per second, which arrive at random (a Poisson process)")


class ServeConfig(Frozen):
    """The load on `gauntlet serve` with the bundle of the run; without an objective, the stage is left out."""

    objective: Objective | None = Field(None, description="by default none, and nothing is served")
    min_duration_s: float = Field(10, gt=0, description="least time of the load")
    min_queries: int = Field(2000, ge=LEAST_QUERIES, description="least number of requests")
    unresolved: Literal["accept", "reject"] = Field(
        "reject", description="what to do when the requests prove the objective neither kept nor missed"
    )
    timeout_s: float = Field(900, gt=0, description="time limit of the whole measurement")
    memory_gb: float = Field(8, gt=0, description="memory limit of the client, which holds a session of its own")

    @model_validator(mode="after")
    def _fits_the_time_limit(self) -> Self:
        needed_s = max(self.min_duration_s, self.min_queries / self.objective.rate) if self.objective else 0
        if needed_s >= self.timeout_s:
            raise ValueError(
                f"timeout_s is {self.timeout_s:g}, but the load takes {needed_s:g} s ({self.min_queries} requests or "
                f"{self.min_duration_s:g} s); raise timeout_s above that, or lower min_queries or min_duration_s"
            )
        return self


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


class ServeFacts(Frozen):
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
