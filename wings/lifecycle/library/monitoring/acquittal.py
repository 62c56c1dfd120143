"""Labels can acquit a change; then the test for drift begins again, against the samples that were acquitted."""

from dataclasses import dataclass

import numpy as np

from wings.lifecycle.library.monitoring.judged_samples import asked_at
from wings.lifecycle.library.monitoring.monitor_history import MonitorHistory
from wings.lifecycle.library.monitoring.monitor_result import MonitorLimits
from wings.lifecycle.library.monitoring.risk_evidence import ACQUITTAL_DOUBTS, label_times, within_wealth
from wings.lifecycle.library.monitoring.seasonal_evidence import seasonal_wealth


@dataclass(frozen=True)
class Change:
    """A change of some features, in samples from 0."""

    names: tuple[str, ...]
    alarm_at: int
    changed_at: int

    def __str__(self) -> str:
        return f"changed since about sample {self.changed_at}: {', '.join(self.names)}"


def last_change(
    history: MonitorHistory, names: tuple[str, ...], first: Change, bound: float, level: float, limits: MonitorLimits
) -> tuple[Change, bool]:
    """Return the last change, and whether the labels since its alarm prove the risk below the bound.

    `names` are the features, `level` is the probability of a false alarm of each one's test. Every further test has
    half of the level of the one before, so that all together stay below twice the first. So do acquittals, which begin
    with half of the false alarms.
    """
    change, false_alarms = first, limits.false_alarms / 2
    times = label_times(history, ACQUITTAL_DOUBTS)
    while True:
        is_later = history.labeled > change.alarm_at
        proof = within_wealth(history.losses[is_later], bound, times[is_later]).first_above(false_alarms)
        if proof is None:
            return change, False
        level, false_alarms = level / 2, false_alarms / 2
        end = int(history.labeled[is_later][: proof + 1].max()) + 1
        following = _following(history, names, change.alarm_at, end, level, limits.season_h)
        if following is None:
            return change, True
        change = following


def _following(
    history: MonitorHistory, names: tuple[str, ...], start: int, end: int, level: float, season_h: float
) -> Change | None:
    """Return the first change behind the acquitted samples, `start` to `end`, or None."""
    alarms, times = dict[str, tuple[int, int]](), asked_at(history)[end:]
    for i, name in enumerate(names):
        column = history.features[:, i]
        if np.isnan(column[start:end]).all():
            continue
        usual = column[start:end]
        wealth = seasonal_wealth(usual[~np.isnan(usual)], column[end:], times, season_h, seed=i)
        alarm = wealth.first_above(level)
        if alarm is not None:
            alarms[name] = end + alarm, end + wealth.best_bet(alarm)[1]
    if not alarms:
        return None
    return Change(tuple(alarms), *min(alarms.values()))
