"""What a monitor found, as `monitor.json` has it."""

from typing import Literal

from pydantic import Field

from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.report import Check

Verdict = Literal["no alarm", "harmful", "harmless", "cannot tell"]
FULL = "further samples are not tested. Fix: --restart, and `gauntlet serve --log-share`"
"""What terminal and page say where the monitor has as many samples as it can test."""


class MonitorLimits(Frozen):
    """When a monitor raises an alarm."""

    false_alarms: float = Field(
        0.05, gt=0, lt=0.5, description="probability of ever raising one while nothing changes, however often one looks"
    )
    max_error_increase: float = Field(
        0.05, gt=0, lt=1, description="share of wrong predictions that may be added to that of the evaluation"
    )
    max_failed_share: float = Field(
        0.01, gt=0, lt=1, description="share of requests that may fail, and of samples with outputs that are not finite"
    )
    label_window_h: float = Field(
        48,
        ge=0,
        description="hours within which labels come: they are judged in the order of their requests, once every "
        "earlier request has a label or is older than this; 0 judges them in the order in which they come",
    )
    season_h: float = Field(
        24,
        ge=0,
        description="hours after which requests repeat a cycle: they are compared with the same hours of earlier "
        "cycles; 0 where they follow none",
    )
    p99_ms: float | None = Field(
        None, gt=0, description="latency that 99 % of the requests must keep; by default the run's serve.objective"
    )
    max_accuracy_drop: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="accuracy that a champion may lose against the previous one before it is rolled back; by default "
        "what its promotion allowed, or 0.01",
    )


class FeatureResult(Frozen):
    """One feature of the stream against the reference."""

    name: str
    description: str
    samples: int = Field(description="samples for which the log has it")
    evidence: Number = Field(description="largest wealth of the bets against no change; decimal logarithm")
    threshold: Number = Field(description="evidence that raises the alarm; decimal logarithm")
    alarm_at: int | None = Field(None, description="sample, from 0, after which the evidence sufficed")
    changed_at: int | None = Field(None, description="sample at which the change probably began")
    reference: tuple[Number, Number, Number] = Field(description="quartiles in the evaluation")
    recent: tuple[Number, Number, Number] | None = Field(
        None, description="quartiles since the change; without an alarm, of all samples"
    )


class RiskResult(Frozen):
    """The share of wrong predictions among labeled samples, against its bound."""

    labeled: int
    wrong: int
    reference: Number = Field(description="share of wrong predictions in the evaluation")
    bound: Number = Field(description="share below which the model counts as not harmed")
    harm_bound: Number = Field(
        description="share above which it counts as harmed: `bound`, with the error of the evaluation's share"
    )
    unlabeled: int = Field(0, description="samples without a label before the last one that is judged")
    waiting: int = Field(0, description="labels that are not judged yet: earlier requests may still get theirs")
    late: int = Field(0, description="labels that came after `label_window_h`, and are not judged")
    above: Number = Field(description="the risk has been above this at some time, at the level of the test; 0: unknown")
    below: Number = Field(description="the risk has been below this at some time, at the level of the test; 1: unknown")
    evidence: Number = Field(
        description="largest wealth of the bets against a risk within the bound; decimal logarithm"
    )
    threshold: Number = Field(description="evidence that raises the alarm; decimal logarithm")
    alarm_at: int | None = Field(None, description="label, from 0 in the order of requests, that sufficed")


class ServiceResult(Frozen):
    """One kind of trouble that requests have, against its limit."""

    name: str
    description: str
    requests: int = Field(description="requests, or samples, that were looked at")
    troubled: int = Field(description="those of them in trouble")
    limit: Number = Field(description="largest share allowed")
    windows: int = Field(description="of at least 10 seconds and 10 requests: what the test counts")
    evidence: Number = Field(description="largest wealth of the bets against a share within the limit; decimal log")
    threshold: Number = Field(description="evidence that raises the alarm; decimal logarithm")
    alarm_at: int | None = Field(None, description="window, from 0, that sufficed")


class EstimateResult(Frozen):
    """The accuracy of recent predictions, estimated without their labels."""

    samples: int = Field(description="recent samples")
    since: int = Field(description="the first of them, from 0: where the change probably began")
    accuracy: Number | None = Field(None, description="None where nothing can be said")
    low: Number | None = Field(None, description="lower end of the 95 % interval")
    high: Number | None = Field(None, description="upper end of the 95 % interval")
    distance: Number | None = Field(None, description="of the feature that moved most, Kolmogorov and Smirnov's")
    farthest: str = Field("", description="that feature")
    reason: str = Field("", description="why nothing can be said")


class PreviousResult(Frozen):
    """The champion against the version before it, since its promotion."""

    digest: str = Field(description="of the previous champion's bundle")
    since: str = Field(description="time of the promotion; ISO 8601, UTC")
    compared: int = Field(0, description="labeled samples that both versions predicted")
    wrong: int = Field(0, description="of these, those that the champion predicted wrong")
    previous_wrong: int = Field(0, description="of these, those that the previous champion predicts wrong")
    left_out: int = Field(0, description="labeled samples whose inputs the log does not have")
    limit: Number = Field(description="accuracy that may be lost")
    evidence: Number = Field(0.0, description="largest wealth of the bets against a loss within it; decimal logarithm")
    threshold: Number = Field(description="evidence that proves harm; decimal logarithm")
    alarm_at: int | None = Field(None, description="compared sample, from 0, that sufficed")
    note: str = Field("", description="why predictions cannot be compared")
    service: tuple[ServiceResult, ...] = Field((), description="since the promotion")
    harm: tuple[str, ...] = Field((), description="what is proven, each a reason to roll back")

    @property
    def checks(self) -> tuple[Check, ...]:
        """The tests as checks on their evidence: one that does not pass proves harm."""
        drop = f"{self.wrong} against {self.previous_wrong} of {self.compared} labeled predictions are wrong"
        tests = [("accuracy drop", self.evidence, self.threshold, f"{drop}; limit {self.limit:g}")]
        tests += [
            (test.name, test.evidence, test.threshold, f"{test.troubled} of {test.requests}; limit {test.limit:g}")
            for test in self.service
        ]
        return tuple(
            Check.of(
                f"watch.{name.replace(' ', '_')}", evidence, "<", threshold, detail, unit="decimal log of evidence"
            )
            for name, evidence, threshold, detail in tests
        )


class MovedSample(Frozen):
    """A sample that speaks most for a change."""

    request_id: str
    time: str = Field(description="ISO 8601, UTC")
    feature: str
    value: Number
    values: dict[str, Number] = Field(description="all features of the sample")
    place: tuple[int, int, int] = Field(description="in the log: file, row, and the sample in the request")


class MonitorResult(Frozen):
    """Whether a model's inputs, outputs or errors have changed since its evaluation, and whether that is harmful."""

    schema_version: Literal[1] = 1
    name: str
    version: str
    time: str = Field(description="when the monitor looked; ISO 8601, UTC")
    verdict: Verdict
    predictions: Verdict = Field("no alarm", description="the verdict without the service and the champion before")
    reason: str = Field(description="the evidence, and what to do")
    samples: int
    reference_samples: int
    first: str | None = Field(None, description="time of the first sample; ISO 8601, UTC")
    last: str | None = None
    skipped_requests: int = 0
    ignored_labels: int = Field(
        0,
        description="of other versions' requests, given twice, of an id that several requests have, or of another "
        "number of samples",
    )
    is_full: bool = Field(False, description="whether further samples are no longer tested")
    limits: MonitorLimits
    features: tuple[FeatureResult, ...]
    no_embedding: str = Field(
        "", description="why the network's penultimate outputs are not watched; empty where they are"
    )
    risk: RiskResult | None = Field(None, description="None where the model predicts no classes")
    estimate: EstimateResult | None = Field(
        None, description="None for a model without a confidence, or without labels in the evaluation"
    )
    service: tuple[ServiceResult, ...] = ()
    previous: PreviousResult | None = Field(None, description="None unless harm is to be rolled back")
    moved: tuple[MovedSample, ...] = Field((), description="samples that speak most for the change, with an alarm")

    @property
    def is_alarm(self) -> bool:
        """Whether there is an alarm that is not proven harmless."""
        return self.verdict in ("harmful", "cannot tell")
