"""What a shadow replay measured, its limits, and the checks that follow."""

import math
from typing import Literal

from pydantic import Field

from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.report import Check
from gauntlet.metrics.paired_accuracy import LossVerdict, PairedAccuracy

UNRESOLVED_FIX = "or accept what is not resolved with --unresolved accept"


class ReplayLimits(Frozen):
    """What a challenger may lose against the champion."""

    max_accuracy_drop: float = Field(0.01, ge=0, le=1, description="accuracy lost on the same labeled requests")
    max_disagreement: float = Field(
        0.02, ge=0, le=1, description="without labels: share of requests with another prediction than the champion's"
    )
    max_slowdown: float = Field(0.05, ge=0, description="latency added, as a share of the champion's: 0.05 is 5 %")
    unresolved: Literal["accept", "reject"] = Field(
        "reject", description="whether to promote when the requests prove neither that a limit is kept nor broken"
    )
    rounds: int = Field(16, ge=6, description="rounds of the race, each with new processes")
    block_ms: float = Field(60.0, gt=0, description="time of each model in a round")
    timeout_s: float = Field(120.0, gt=0, description="for any one reply of a process")
    seed: int = 0


class GainFacts(Frozen):
    """The challenger against the champion on labeled requests on which it must be better."""

    source: str = Field(description="where the requests came from")
    champion_accuracy: Number
    challenger_accuracy: Number
    paired: PairedAccuracy = Field(description="request by request; a gain is a negative drop")
    requests_to_resolve: int | None = Field(
        None, description="requests to prove a gain; None if proven or out of reach"
    )


class ReplayFacts(Frozen):
    """The challenger against the champion, on the same requests, each in its own processes."""

    champion: str = Field(description="digest of the champion's bundle")
    source: str = Field(description="where the requests came from")
    requests: int = Field(description="requests that both models have outputs for")
    labeled: bool = Field(
        description="whether the true labels are known; without them, the champion's predictions count as true"
    )
    paired: PairedAccuracy = Field(description="request by request")
    quality: LossVerdict = Field(description="whether the loss is proven within the limit, at 95 %")
    requests_to_resolve: int | None = Field(description="requests to prove it; None if proven or out of reach")
    batch: int = Field(description="samples in a timed request")
    champion_ms: Number = Field(description="median over rounds")
    challenger_ms: Number
    slowdown: Number = Field(description="latency added, as a share of the champion's; negative when faster")
    slowdown_low: Number = Field(description="lower end of the 95 % interval")
    slowdown_high: Number
    latency: LossVerdict = Field(description="whether the slowdown is proven within the limit, at 95 %")
    rounds: int
    more_rounds: int | None = Field(description="further rounds that would probably prove it; None if none would")
    timed_requests: int = Field(description="timed calls of each model")
    gain: GainFacts | None = Field(None, description="on the requests on which it must be better, where there are any")


def replay_checks(facts: ReplayFacts, limits: ReplayLimits) -> tuple[Check, ...]:
    """Return the checks: each compares the end of the interval that proves the limit to be kept."""
    gained = () if facts.gain is None else (gain_check(facts.gain),)
    return *gained, _quality_check(facts, limits), _latency_check(facts, limits)


def quality_limit(limits: ReplayLimits, *, labeled: bool) -> float:
    """Return the limit of the loss."""
    return limits.max_accuracy_drop if labeled else limits.max_disagreement


def gain_check(facts: GainFacts) -> Check:
    """Return whether the challenger is proven, at 95 %, to be more accurate on the requests on which it must be."""
    paired, low = facts.paired, -facts.paired.drop_high
    verdict = "proven better" if low > 0 else "proven worse" if paired.drop_low > 0 else "not resolved"
    accuracies = f"{facts.challenger_accuracy:.4f} against {facts.champion_accuracy:.4f}"
    interval = f"gain {-paired.drop:.4f}, 95 % interval {low:.4f} to {-paired.drop_low:.4f}"
    detail = f"{verdict}: accuracy {accuracies}, {interval}; {paired.images} requests of {facts.source}"
    needed = facts.requests_to_resolve
    fix = f"about {needed} requests would settle it" if needed else "train it otherwise, or on more of such requests"
    return Check.of("promote.min_gain", low, ">", 0, detail, fix)


def _quality_check(facts: ReplayFacts, limits: ReplayLimits) -> Check:
    paired = facts.paired
    kind = "max_accuracy_drop" if facts.labeled else "max_disagreement"
    changed = f"{paired.lost} lost, {paired.gained} gained" if facts.labeled else f"{paired.lost} predicted differently"
    measured = f"{paired.drop:.4f}, 95 % interval {paired.drop_low:.4f} to {paired.drop_high:.4f}"
    detail = f"{facts.quality}: {measured}; {paired.images} requests, {changed}"
    fix = "train or quantize it better"
    if facts.quality == "not resolved":
        needed = facts.requests_to_resolve
        more = f"replay about {needed} requests (--requests)" if needed else "no number of requests is likely to do"
        fix = f"{more}, {UNRESOLVED_FIX}"
    limit = quality_limit(limits, labeled=facts.labeled)
    severity = _severity(facts.quality, paired.drop, limit, limits)
    return Check.of(f"promote.{kind}", paired.drop_high, "<=", limit, detail, fix, severity=severity)


def _latency_check(facts: ReplayFacts, limits: ReplayLimits) -> Check:
    ends = f"{facts.slowdown_low:+.1%} to {facts.slowdown_high:+.1%}"
    times = f"{facts.challenger_ms:.3g} ms against {facts.champion_ms:.3g} ms"
    detail = f"{facts.latency}: {facts.slowdown:+.1%}, 95 % interval {ends}; {times}"
    detail += f", {facts.timed_requests} timed requests in {facts.rounds} rounds"
    fix = "make it faster, or raise --max-slowdown"
    if facts.latency == "not resolved":
        more = (
            f"use --rounds {facts.rounds + facts.more_rounds}" if facts.more_rounds else "measure on a quieter machine"
        )
        fix = f"{more}, {UNRESOLVED_FIX}"
    severity = _severity(facts.latency, facts.slowdown, limits.max_slowdown, limits)
    value = facts.slowdown_high if math.isfinite(facts.slowdown_high) else None
    return Check.of("promote.max_slowdown", value, "<=", limits.max_slowdown, detail, fix, severity=severity)


def _severity(verdict: LossVerdict, measured: float, limit: float, limits: ReplayLimits) -> Literal["error", "warning"]:
    """Only what is not resolved, and was measured within the limit, can be accepted."""
    accepted = verdict == "not resolved" and limits.unresolved == "accept" and measured <= limit
    return "warning" if accepted else "error"
