"""Which labels of a history are judged, and in which order."""

from dataclasses import replace

import numpy as np

from gauntlet.core.arrays import Floats
from wings.lifecycle.library.monitoring.monitor_history import MonitorHistory

HOUR_S = 3600


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
    """Return the times of the samples, none after a later one's: a clock that was ahead for a while is set right."""
    return np.asarray(np.minimum.accumulate(history.times[::-1])[::-1])
