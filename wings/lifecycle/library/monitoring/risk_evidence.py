"""Is the share of wrong predictions above a bound? Bets on labels, after every one of them.

Where the expected loss of each sample, given the past, is at most the bound, no bet that losses exceed it gains: the
wealth is a test supermartingale (Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting,
2020; for a risk that may change, arXiv 2506.16416). Where losses depend on each other, each counts for less
(`autocorrelation`).
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Floats
from wings.lifecycle.library.monitoring.autocorrelation import FIRST_SAMPLES, LAGS, autocorrelation_times
from wings.lifecycle.library.monitoring.martingale import Wealth, wealth
from wings.lifecycle.library.monitoring.monitor_history import MonitorHistory

STAKES = (0.01, 0.03, 0.1, 0.3, 0.6, 0.9)
"""Shares of the largest bet that cannot lose everything."""
STEPS = 20
FIRST_TIME = 1.5
"""Autocorrelation time of the first labels. Each counts: it is less than that of features, and has no margin."""
FIRST_ALIKE = 16.0
"""The same by features, which do not show it yet of the first requests."""
HARM_DOUBTS, ACQUITTAL_DOUBTS = 2, 1
"""See `label_times`. A bet on harm can win by a few rows of wrong predictions."""
BLOCK = 8
"""Labels whose mean loss a bet on harm is on: a user whose predictions are all wrong is one loss, not eight."""


def exceeds_wealth(losses: Floats, bound: float, times: Floats | float = 1.0) -> Wealth:
    """Return the evidence after each loss, 0 to 1, that the risk has been above the bound, 0 < bound < 1.

    `times` are the losses' autocorrelation times, shape (n,), where they may depend on each other.
    """
    stakes, weights = np.array(STAKES), 1 / np.broadcast_to(times, losses.shape)[:, None]
    return wealth(lambda part: np.log1p(stakes * (losses[part][:, None] / bound - 1)) * weights[part], len(losses))


def labeled_wealth(losses: Floats, bound: float) -> Wealth:
    """Return the evidence after each loss of a labeled sample, which may depend on others, that the risk is above."""
    return exceeds_wealth(losses, bound, autocorrelation_times(losses[:, None], first=FIRST_TIME, errors=0))


def label_times(history: MonitorHistory, doubts: int) -> Floats:
    """Return as how many labels in a row each one counts: by features, and by named clients that do not take turns.

    What one client sends in a row depends wholly until wrong predictions of earlier rows show that it does not; besides
    them, `doubts` rows count that are all wrong.
    """
    times = sample_times(history.features, history.labeled)
    names = np.char.rpartition(history.ids if len(times) else [b""], b"/")[:, 0]
    _, first, client = np.unique(names, return_index=True, return_inverse=True)
    if len(first) < 2:
        return times
    numbers = np.random.default_rng(0).random(len(client))[first[client]]  # a client's; later samples change none
    alike = sample_times(numbers[:, None], history.labeled) - 1
    return np.maximum(times, 1 + alike * _wrong_together(history.losses, client[history.labeled], doubts))


def _wrong_together(losses: Floats, clients: npt.NDArray[np.int64], doubts: int) -> Floats:
    """Return for each label the share of a client's labels in a row that are wrong where one is, by earlier rows."""
    starts = np.flatnonzero(np.diff(clients, prepend=-1))
    sizes, wrong = np.diff(starts, append=len(losses)), np.add.reduceat(losses, starts)
    tells = (wrong > 0) & (sizes > 1)
    shares = np.where(tells, wrong - 1, 0) / np.maximum(sizes - 1, 1)
    known = (doubts + np.cumsum(shares)) / (doubts + np.cumsum(tells))
    return np.repeat(np.append(1.0, known[:-1]), sizes)


def sample_times(features: Floats, labeled: npt.NDArray[np.int64]) -> Floats:
    """Return as how many labels in a row each labeled sample counts, by the features of the requests, shape (n, k).

    Few wrong predictions do not show how they depend on each other; they are taken to depend as the samples do: those
    with labels, and for the first of them, all requests before.
    """
    first = features[: labeled[:FIRST_SAMPLES].max(initial=-1) + 1]
    times = np.minimum(_feature_times(first)[labeled[:FIRST_SAMPLES]], FIRST_ALIKE)
    return np.concatenate([times, _feature_times(features[labeled])[FIRST_SAMPLES:]])


def _feature_times(features: Floats) -> Floats:
    return autocorrelation_times(features, first=FIRST_ALIKE, whole=True)


def harm_wealth(losses: Floats, bound: float, times: Floats | float = 1.0) -> Wealth:
    """Return the same by bets on the mean losses of labels in a row, where the bound is small.

    Single labels would prove harm by one user whose predictions are all wrong. Near a bound of 1, means would win
    little: a bet gains by a factor of at most 1/bound. `times` are the `sample_times`.
    """
    whole = len(losses) // BLOCK * BLOCK
    means = losses[:whole].reshape(-1, BLOCK).mean(axis=1)
    alike = np.broadcast_to(times, losses.shape)[:whole].reshape(-1, BLOCK).mean(axis=1) / BLOCK
    own = autocorrelation_times(means[:, None], first=1, errors=0, delay=2 * LAGS)
    evidence = exceeds_wealth(means, bound, np.maximum(own, alike))
    blocks = np.arange(1, len(losses) + 1) // BLOCK
    return replace(evidence, log=np.concatenate([[0.0], evidence.log])[blocks])


def within_wealth(losses: Floats, bound: float, times: Floats) -> Wealth:
    """Return the evidence after each loss of a labeled sample that the risk has been below the bound, 0 < bound < 1.

    `times` are the `sample_times`; losses may depend on each other more than they say.
    """
    return exceeds_wealth(1 - losses, 1 - bound, np.maximum(times, autocorrelation_times(losses[:, None], first=1)))


def risk_lower_bound(losses: Floats, level: float, times: Floats | float = 1.0) -> float:
    """Return a risk that the stream has exceeded at some time, at this level and however often it is computed.

    The lower end of the betting confidence sequence: the bounds that `harm_wealth` rejects are all below it. 0 where
    none is rejected.
    """
    return _highest_rejected(lambda bound: harm_wealth(losses, bound, times), level)


def risk_upper_bound(losses: Floats, level: float) -> float:
    """Return a risk that the stream has been below at some time, at this level; 1 where there is none."""
    return 1 - _highest_rejected(lambda bound: labeled_wealth(1 - losses, bound), level)


def _highest_rejected(evidence: Callable[[float], Wealth], level: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        if evidence(middle).first_above(level) is None:
            high = middle
        else:
            low = middle
    return low if low > 1 / 2**STEPS else 0.0
