"""What a shadow replay measured, its limits, and the checks that follow."""

import math
from typing import Literal

from pydantic import Field

from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.report import Check
from gauntlet.metrics.class_drops import ClassDrop
from gauntlet.metrics.paired_accuracy import LossVerdict, PairedChange
from wings.lifecycle.library.promotion.quality import drop_verdict

UNRESOLVED_FIX = ", or accept what is not resolved with --unresolved accept"


class ReplayLimits(Frozen):
    """What a challenger may lose against the champion."""

    max_accuracy_drop: float = Field(
        0.01,
        ge=0,
        le=1,
        description="lost of the accuracy, or of the problem's own metric, on the same labeled requests",
    )
    max_disagreement: float = Field(
        0.02,
        ge=0,
        le=1,
        description="without labels: share of requests with another prediction than the champion's, or what the "
        "problem's own metric lacks of 1 where the champion's predictions are the truth",
    )
    max_class_drop: float = Field(
        0.1, ge=0, le=1, description="recall or precision that a single class is proven to lose"
    )
    max_slowdown: float = Field(0.05, ge=0, description="latency added, as a share of the champion's: 0.05 is 5 %")
    unresolved: Literal["accept", "reject"] = Field(
        "reject", description="whether to promote when the requests prove neither that a limit is kept nor broken"
    )
    rounds: int = Field(16, ge=6, description="rounds of the race, each with new processes")
    block_ms: float = Field(60.0, gt=0, description="time of each model in a round")
    timeout_s: float = Field(120.0, gt=0, description="for any one reply of a process")
    seed: int = 0


class ReplayFacts(Frozen):
    """The challenger against the champion, on the same requests, each in its own processes."""

    change: PairedChange = Field(
        description="from champion to challenger: of the problem's metric, or of the agreement with the champion"
    )
    scores: dict[str, Number] = Field(default_factory=dict, description="the challenger's metrics, with labels")
    champion_scores: dict[str, Number] = Field(default_factory=dict, description="and the champion's")
    class_drop: ClassDrop | None = Field(None, description="of the class that loses most; None without classes")
    ranking: PairedChange | None = Field(None, description="of the classes' mean ROC AUC, with labels")
    champion: str = Field(description="digest of the champion's bundle")
    source: str = Field(description="where the requests came from")
    requests: int = Field(description="requests that both models have outputs for")
    labeled: bool = Field(
        description="whether the true labels are known; without them, the champion's predictions count as true"
    )
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
    champion_peak_bytes: int = Field(0, description="peak memory of its process, median over rounds")
    challenger_peak_bytes: int = 0
    gain: PairedChange | None = Field(
        None, description="on the requests on which it must be better, where there are any"
    )
    gain_source: str = Field("", description="where these came from")


def replay_checks(facts: ReplayFacts, limits: ReplayLimits) -> tuple[Check, ...]:
    """Return the checks: each compares the end of the interval that proves the limit to be kept."""
    gained = () if facts.gain is None else (gain_check(facts.gain, facts.gain_source),)
    by_class = (*class_check(facts.class_drop, limits), *ranking_check(facts.ranking, limits))
    return *gained, _quality_check(facts, limits), *by_class, _latency_check(facts, limits)


def quality_limit(limits: ReplayLimits, *, labeled: bool) -> float:
    """Return the limit of the loss."""
    return limits.max_accuracy_drop if labeled else limits.max_disagreement


def gain_check(change: PairedChange, source: str) -> Check:
    """Return whether the challenger is proven, at 95 %, to be more accurate on the requests on which it must be."""
    low = -change.high
    verdict = "proven better" if low > 0 else "proven worse" if change.low > 0 else "not resolved"
    values = f"{change.metric} {change.after:.4f} against {change.before:.4f}"
    interval = f"gain {-change.drop:.4f}, 95 % interval {low:.4f} to {-change.low:.4f}"
    detail = f"{verdict}: {values}, {interval}; {change.n} requests of {source}"
    needed = None if low > 0 else drop_verdict(change, 0)[1]
    fix = f"about {needed} requests would settle it" if needed else "train it otherwise, or on more of such requests"
    return Check.of("promote.min_gain", low, ">", 0, detail, fix)


def _quality_check(facts: ReplayFacts, limits: ReplayLimits) -> Check:
    change = facts.change
    kind = "max_accuracy_drop" if facts.labeled else "max_disagreement"
    measured = f"{change.drop:.4f}, 95 % interval {change.low:.4f} to {change.high:.4f}"
    detail = f"{facts.quality}: {measured}; {change.n} requests, {_changed(facts)}"
    fix = "train or quantize it better"
    if facts.quality == "not resolved":
        needed = facts.requests_to_resolve
        fix = f"replay about {needed} requests (--requests)" if needed else "no number of requests is likely to do"
    limit = quality_limit(limits, labeled=facts.labeled)
    fix += _or_accept(facts.quality, change.drop, limit, limits)
    severity = _severity(facts.quality, change.drop, limit, limits)
    return Check.of(f"promote.{kind}", change.high, "<=", limit, detail, fix, severity=severity)


def class_check(drop: ClassDrop | None, limits: ReplayLimits) -> list[Check]:
    """Return whether no class loses more than a limit allows; nothing for models without classes."""
    if drop is None:
        return []
    fix = "train it on more of this class, or raise --max-class-drop"
    return [Check.of("promote.max_class_drop", drop.drop_low, "<=", limits.max_class_drop, drop.text, fix)]


def ranking_check(change: PairedChange | None, limits: ReplayLimits) -> list[Check]:
    """Return whether no more of the ranking than of the accuracy is proven to be lost; nothing without labels."""
    if change is None:
        return []
    detail = f"mean ROC AUC {change.before:.4f} of the champion, {change.after:.4f} now; at least this drop"
    fix = "train it for the scores, and not for the predicted class alone"
    return [Check.of("promote.max_ranking_drop", change.low, "<=", limits.max_accuracy_drop, detail, fix)]


def _changed(facts: ReplayFacts) -> str:
    """Return in words what changed from champion to challenger."""
    change = facts.change
    if change.lost is None:
        whose = "" if facts.labeled else ", with the champion's predictions as the truth"
        return f"{change.metric} {change.after:.4f} against {change.before:.4f}{whose}"
    return f"{change.lost} lost, {change.gained} gained" if facts.labeled else f"{change.lost} predicted differently"


def _latency_check(facts: ReplayFacts, limits: ReplayLimits) -> Check:
    ends = f"{facts.slowdown_low:+.1%} to {facts.slowdown_high:+.1%}"
    times = f"{facts.challenger_ms:.3g} ms against {facts.champion_ms:.3g} ms"
    detail = f"{facts.latency}: {facts.slowdown:+.1%}, 95 % interval {ends}; {times}"
    detail += f", {facts.timed_requests} timed requests in {facts.rounds} rounds"
    fix = "make it faster, or raise --max-slowdown"
    if facts.latency == "not resolved":
        more = facts.more_rounds
        fix = f"use --rounds {facts.rounds + more}" if more else "measure on a quieter machine"
    fix += _or_accept(facts.latency, facts.slowdown, limits.max_slowdown, limits)
    severity = _severity(facts.latency, facts.slowdown, limits.max_slowdown, limits)
    value = facts.slowdown_high if math.isfinite(facts.slowdown_high) else None
    return Check.of("promote.max_slowdown", value, "<=", limits.max_slowdown, detail, fix, severity=severity)


def _or_accept(verdict: LossVerdict, measured: float, limit: float, limits: ReplayLimits) -> str:
    accepting = limits.replace(unresolved="accept")
    helps = limits != accepting and _severity(verdict, measured, limit, accepting) == "warning"
    return UNRESOLVED_FIX if helps else ""


def _severity(verdict: LossVerdict, measured: float, limit: float, limits: ReplayLimits) -> Literal["error", "warning"]:
    """Only what is not resolved, and was measured within the limit, can be accepted."""
    accepted = verdict == "not resolved" and limits.unresolved == "accept" and measured <= limit
    return "warning" if accepted else "error"
