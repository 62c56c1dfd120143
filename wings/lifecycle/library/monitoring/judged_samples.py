"""Which labels of a history are judged, and in which order."""

from dataclasses import replace

import numpy as np

from gauntlet.core.arrays import Floats
from wings.lifecycle.library.monitoring.monitor_history import MonitorHistory

HOUR_S = 3600
SAMPLES_BEFORE = 101
"""Of each sample, itself included."""


def judged_labels(history: MonitorHistory, window_h: float, now: float) -> MonitorHistory:
    """Return a history with the labels that may be judged, in the order of their requests.

    Labels of wrong predictions may come sooner than those of right ones. So a label may be judged once every earlier
    request has one, or is older than `window_h` hours at the time `now`, in seconds since 1970. Labels that take longer
    are left out. With 0 hours, all are judged, in the order in which they came.
    """
    if not window_h:
        return replace(history, unlabeled=len(history.times) - len(history.labeled))
    window_s, requested_at = HOUR_S * window_h, asked_at(history)
    has_label = np.zeros(len(requested_at), np.bool_)
    has_label[history.labeled] = True
    pending = np.flatnonzero(~has_label & (requested_at > now - window_s))
    end = int(pending[0]) if len(pending) else len(requested_at)
    own = history.times[history.labeled]  # by a clock that may have been behind since, or was ahead
    since = np.where(own > history.label_times, requested_at[history.labeled], own)
    is_late = history.label_times - since > window_s
    chosen = np.flatnonzero((history.labeled < end) & ~is_late)
    return replace(
        _with_labels(history, chosen[np.argsort(history.labeled[chosen])]),
        unlabeled=int((~has_label[:end]).sum()),
        waiting=int((~is_late).sum()) - len(chosen),
        late=int(is_late.sum()),
    )


def _with_labels(history: MonitorHistory, chosen: np.ndarray) -> MonitorHistory:
    names = ("losses", "labels", "labeled", "label_times")
    return replace(history, **{name: getattr(history, name)[chosen] for name in names})


def asked_at(history: MonitorHistory) -> Floats:
    """Return the times of the samples, none after a later one's: a clock that was ahead, or behind, is set right.

    A time that most of the `SAMPLES_BEFORE` exceed is of a clock that was behind, and counts as that of the next one.
    """
    from scipy.ndimage import median_filter

    times = history.times
    usual = median_filter(times, SAMPLES_BEFORE, mode="constant", cval=-np.inf, origin=SAMPLES_BEFORE // 2)
    if (times < usual).any():
        times = np.where(times < usual, times[times >= usual].max(), times)
    return np.asarray(np.minimum.accumulate(times[::-1])[::-1])
