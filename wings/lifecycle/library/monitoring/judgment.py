"""From a history to a verdict: which features changed, whether labels prove harm, and which samples moved most."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from gauntlet.core.arrays import Floats
from wings.lifecycle.library.monitoring.accuracy_estimate import MAX_ERROR, estimate_accuracy
from wings.lifecycle.library.monitoring.acquittal import Change, last_change
from wings.lifecycle.library.monitoring.drift_evidence import log_bets
from wings.lifecycle.library.monitoring.features import DESCRIPTIONS, PREDICTED
from wings.lifecycle.library.monitoring.judged_samples import HOUR_S, asked_at
from wings.lifecycle.library.monitoring.martingale import Wealth
from wings.lifecycle.library.monitoring.monitor_history import MonitorHistory
from wings.lifecycle.library.monitoring.monitor_result import (
    EstimateResult,
    FeatureResult,
    MonitorLimits,
    MonitorResult,
    MovedSample,
    PreviousResult,
    RiskResult,
    Verdict,
)
from wings.lifecycle.library.monitoring.reference import MonitoringReference
from wings.lifecycle.library.monitoring.risk_evidence import (
    HARM_DOUBTS,
    harm_wealth,
    label_times,
    risk_lower_bound,
    risk_upper_bound,
)
from wings.lifecycle.library.monitoring.seasonal_evidence import seasonal_wealth
from wings.lifecycle.library.monitoring.service_evidence import ServiceTest, harms, service_tests

SHOWN = 12
"""Samples that moved most."""
HIGHEST_BOUND = 0.99
AS_INPUTS = " (if they depend on each other no longer than inputs do)"


@dataclass(frozen=True)
class Evidence:
    """The wealth of every test after each sample or label; for the drawing and the result."""

    history: MonitorHistory
    features: tuple[Wealth | None, ...]
    """None for a feature that the log does not keep."""
    risk: Wealth | None
    dependence: Floats
    """The `label_times`."""
    service: tuple[ServiceTest, ...]
    level: float
    """The probability of a false alarm that each feature's test has."""
    risk_level: float
    service_level: float


def gather(history: MonitorHistory, reference: MonitoringReference, limits: MonitorLimits) -> Evidence:
    """Run all tests. Half of the false alarms is the risk's; features and service share the rest.

    Half of the risk's is for the chance that the evaluation's samples had fewer errors than there will be.
    """
    service, times = service_tests(history, limits), asked_at(history)
    kept = [not np.isnan(column).all() for column in history.features.T]
    features = tuple(
        seasonal_wealth(reference.usual(i), history.features[:, i], times, limits.season_h, seed=i) if kept[i] else None
        for i in range(len(reference.watched))
    )
    bound = harm_bound(reference, limits)
    dependence = label_times(history, HARM_DOUBTS)
    risk = harm_wealth(history.losses, bound, dependence) if bound is not None else None
    rest = limits.false_alarms / (4 if risk is not None else 2)
    levels = (rest / len(features), limits.false_alarms / 4, rest / len(service))
    return Evidence(history, features, risk, dependence, service, *levels)


def risk_bound(reference: MonitoringReference, limits: MonitorLimits) -> float | None:
    """Return the share of wrong predictions below which the model is not harmed; None where it is not known."""
    return None if reference.error is None else min(HIGHEST_BOUND, reference.error + limits.max_error_increase)


def harm_bound(reference: MonitoringReference, limits: MonitorLimits) -> float | None:
    """Return the share of wrong predictions above which the model is harmed; None where it is not known.

    The evaluation's share is known from a sample, so its upper confidence bound counts (Clopper and Pearson, 1934).
    """
    from scipy.stats import beta

    if reference.wrong is None:
        return None
    wrong, right = int(reference.wrong.sum()), int((~reference.wrong).sum())
    highest = float(beta.ppf(1 - limits.false_alarms / 4, wrong + 1, right)) if right else 1.0
    return min(HIGHEST_BOUND, highest + limits.max_error_increase)


def judge(
    name: str,
    version: str,
    reference: MonitoringReference,
    limits: MonitorLimits,
    evidence: Evidence,
    previous: PreviousResult | None = None,
) -> MonitorResult:
    """Return the result of a look; `previous` is the comparison with the champion before."""
    history = evidence.history
    features = tuple(
        _feature(feature, history.features[:, i], reference.usual(i), evidence.features[i], evidence.level)
        for i, feature in enumerate(reference.watched)
    )
    risk = _risk(reference, limits, evidence)
    drifted = [feature for feature in features if feature.alarm_at is not None]
    service = tuple(test.result(evidence.service_level) for test in evidence.service)
    estimate = estimate_accuracy(history, reference, min((feature.changed_at or 0 for feature in drifted), default=0))
    verdict, reason = _verdict(drifted, risk, estimate, history, reference, evidence.level, limits)
    predictions = verdict
    if harm := (*(previous.harm if previous else ()), *harms(service)):
        verdict, reason = "harmful", "; ".join(dict.fromkeys(harm))
    times = [_written(time) for time in (history.times[[0, -1]] if len(history.times) else ())]
    return MonitorResult(
        name=name,
        version=version,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        verdict=verdict,
        predictions=predictions,
        reason=reason,
        samples=len(history.times),
        reference_samples=len(reference.features),
        first=times[0] if times else None,
        last=times[1] if times else None,
        skipped_requests=history.skipped,
        ignored_labels=history.ignored,
        limits=limits,
        features=features,
        no_embedding=reference.no_embedding,
        risk=risk,
        estimate=estimate,
        service=service,
        previous=previous,
        moved=_moved(drifted, reference, evidence),
    )


def _feature(name: str, stream: Floats, reference: Floats, wealth: Wealth | None, level: float) -> FeatureResult:
    alarm = wealth.first_above(level) if wealth else None
    changed = wealth.best_bet(alarm)[1] if wealth and alarm is not None else None
    return FeatureResult(
        name=name,
        description=DESCRIPTIONS[name],
        samples=int((~np.isnan(stream)).sum()),
        evidence=max(0.0, _decimal(wealth.log.max())) if wealth else 0.0,  # it begins with a wealth of 1
        threshold=_decimal(-np.log(level)),
        alarm_at=alarm,
        changed_at=changed,
        reference=_quartiles(reference),
        recent=_quartiles(stream[changed or 0 :]) if wealth else None,
    )


def _risk(reference: MonitoringReference, limits: MonitorLimits, evidence: Evidence) -> RiskResult | None:
    history = evidence.history
    bound, harm, losses = risk_bound(reference, limits), harm_bound(reference, limits), history.losses
    if bound is None or harm is None or evidence.risk is None:
        return None
    return RiskResult(
        labeled=len(losses),
        wrong=int(losses.sum()),
        reference=reference.error or 0.0,
        bound=bound,
        harm_bound=harm,
        unlabeled=history.unlabeled,
        waiting=history.waiting,
        late=history.late,
        above=risk_lower_bound(losses, evidence.risk_level, evidence.dependence),
        below=risk_upper_bound(losses, evidence.risk_level),
        evidence=max(0.0, _decimal(evidence.risk.log.max())) if len(losses) else 0.0,
        threshold=_decimal(-np.log(evidence.risk_level)),
        alarm_at=evidence.risk.first_above(evidence.risk_level),
    )


def _verdict(
    drifted: Sequence[FeatureResult],
    risk: RiskResult | None,
    estimate: EstimateResult | None,
    history: MonitorHistory,
    reference: MonitoringReference,
    level: float,
    limits: MonitorLimits,
) -> tuple[Verdict, str]:
    if risk is not None and risk.alarm_at is not None:
        return "harmful", (
            f"the risk is proven above {risk.harm_bound:.1%}: {risk.wrong} of {risk.labeled} labeled predictions "
            f"are wrong{AS_INPUTS}, against {risk.reference:.1%} in the evaluation. "
            "Fix: retrain with recent samples, or roll back"
        )
    if not drifted:
        if not len(history.times):
            return "no alarm", "the log has no request of this version yet"
        return "no alarm", f"no test has evidence of a change{_first_season(history, limits.season_h)}"
    first = min(drifted, key=lambda feature: feature.alarm_at or 0)
    change = Change(tuple(feature.name for feature in drifted), first.alarm_at or 0, first.changed_at or 0)
    if risk is None:
        return "cannot tell", f"{change}; the bundle has no labels that tell whether predictions suffer"
    last, is_acquitted = last_change(history, reference.watched, change, risk.bound, level, limits)
    later = history.losses[history.labeled > last.alarm_at]
    if is_acquitted:
        return "harmless", (
            f"{last}; but the risk since the alarm is proven below {risk.bound:.1%}: {int(later.sum())} of "
            f"{len(later)} labeled predictions are wrong{AS_INPUTS}"
        )
    if last != change:  # labels have acquitted the first one
        estimate = estimate_accuracy(history, reference, last.changed_at)
    return _estimated(str(last), len(later), risk, estimate)


def _first_season(history: MonitorHistory, season_h: float) -> str:
    """Return what a monitor cannot find before it has seen one season, or nothing."""
    if np.ptp(asked_at(history)) >= HOUR_S * season_h:
        return ""
    only = "only changes that no hour of the evaluation explains are found"
    return f"; until {season_h:g} h are logged, {only} (--season-h 0 where requests follow no cycle)"


def _estimated(changed: str, labels: int, bounds: RiskResult, estimate: EstimateResult | None) -> tuple[Verdict, str]:
    """Return the verdict on a change that labels do not decide: the estimated risk has to be clear of the bounds."""
    fix = "Fix: send labels of recent requests to POST /v2/models/NAME/feedback"
    unknown = f"{changed}; the {labels} labels since the alarm do not prove whether predictions suffer"
    if estimate is None or estimate.accuracy is None or estimate.low is None or estimate.high is None:
        return (
            "cannot tell",
            f"{unknown}{f', and accuracy cannot be estimated: {estimate.reason}' if estimate else ''}. {fix}",
        )
    risk = f"the estimated risk is {1 - estimate.accuracy:.1%} [{1 - estimate.high:.1%}, {1 - estimate.low:.1%}]"
    if 1 - estimate.high - MAX_ERROR > bounds.harm_bound:
        return "harmful", f"{changed}; without labels, {risk}, above {bounds.harm_bound:.1%}. {fix}"
    if 1 - estimate.low + MAX_ERROR < bounds.bound:
        return "harmless", f"{changed}; without labels, {risk}, below {bounds.bound:.1%}"
    return "cannot tell", f"{unknown}; {risk}. {fix}"


def _moved(
    drifted: Sequence[FeatureResult], reference: MonitoringReference, evidence: Evidence
) -> tuple[MovedSample, ...]:
    """Return samples since the first feature changed: those whose bets won most, then those farthest away."""
    if not drifted:
        return ()
    first = min(drifted, key=lambda feature: feature.alarm_at or 0)
    history, place = evidence.history, reference.watched.index(first.name)
    wealth, stream = evidence.features[place], history.features[:, place]
    assert wealth is not None and first.alarm_at is not None
    bet, start = wealth.best_bet(first.alarm_at)
    ordered = np.sort(reference.usual(place))
    ranks = (np.searchsorted(ordered, stream[start:], "left") + np.searchsorted(ordered, stream[start:], "right")) / 2
    gains = log_bets((ranks + 0.5) / (len(ordered) + 1))[:, bet]
    gains[np.isnan(stream[start:])] = -np.inf  # the log does not have it
    far = np.zeros(len(gains)) if first.name == PREDICTED else np.abs(stream[start:] - np.median(ordered))
    chosen = np.lexsort((-np.nan_to_num(far, nan=np.inf), -gains))[:SHOWN] + start
    return tuple(
        MovedSample(
            request_id=bytes(history.ids[i]).decode(),
            time=_written(history.times[i]),
            feature=first.name,
            value=float(stream[i]),
            values=dict(zip(reference.watched, history.features[i].tolist(), strict=True)),
            place=tuple(history.places[i].tolist()),
        )
        for i in chosen.tolist()
    )


def _quartiles(values: Floats) -> tuple[float, float, float]:
    finite = values[np.isfinite(values)]
    low, middle, high = np.percentile(finite, [25, 50, 75]).tolist() if len(finite) else [np.nan] * 3
    return low, middle, high


def _decimal(log: float) -> float:
    return float(log / np.log(10))


def _written(time: float) -> str:
    return datetime.fromtimestamp(float(time), UTC).isoformat(timespec="milliseconds")
