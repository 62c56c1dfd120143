"""How much do samples tell that depend on each other? Requests of one user, or of one minute, are alike.

n samples with the autocorrelations r(k) tell as much as n / t independent ones, with the integrated autocorrelation
time t = 1 + 2 * (r(1) + r(2) + ...) (Sokal, Monte Carlo Methods in Statistical Mechanics, 1997). So the logarithm of a
bet on a sample is divided by t. Where samples that are t apart are independent, that is no more than the mean of t
fair games, one on every t-th sample.

The autocorrelations come from mean squared differences at a lag, against those at longer lags. A lasting change adds
to both alike, so it does not count as dependence, as it would against the variance; but one that is newer than these
lags adds more to the longer ones.

Predictions of a user may be wholly alike where features are not. So where features surely depend, `whole` takes their
part that does as all of them, by the autocorrelation that the first two lags tell of lag 0.
"""

import numpy as np

from gauntlet.core.arrays import Floats

LAGS = 16
"""Dependence over more samples is not seen."""
FIRST_SAMPLES = 48
"""So many are needed for an estimate."""
RECENT = 16_384
"""Samples that an estimate is of, at most."""
WINDOW = 5.0
"""Lags that are summed, in autocorrelation times: more would add noise alone (Sokal's automatic window)."""
PART = 128
"""Samples of a part whose autocorrelations are estimated alone: a change looks like dependence in its part only."""
SURE, UNSURE = 2.0, 4.0
"""Standard errors above 0 from which the mean autocorrelation of all series is sure, and that of one of many."""


def autocorrelation_times(
    values: Floats, *, first: float = 2.5, errors: float = 0.5, delay: int = 0, whole: bool = False
) -> Floats:
    """Return for each sample the autocorrelation time of those before it, at least 1, shape (n,).

    Args:
        values: shape (n, k), as k series of which the most dependent one counts.
        first: what the time is taken to be until it can be estimated.
        errors: standard errors by which an estimate is increased.
        delay: samples before each that its estimate leaves out; 2 * `LAGS` leave out a change that is new.
        whole: take the part of the values that depends as all of them.
    """
    times, end = np.full(len(values), first), FIRST_SAMPLES + delay
    while end < len(values):
        following = end + min(end, RECENT) // 4
        times[end:following] = _time(values[max(0, end - RECENT) : end - delay], errors, whole)
        end = following
    return times


def _time(values: Floats, errors: float, whole: bool) -> float:
    alike = _alike(values)
    if whole:
        parts = np.array_split(values, max(1, len(values) // PART))
        alike = np.median([_alike(_ranked(part)) for part in parts], axis=0)
        sure = np.append(np.full(alike.shape[1], UNSURE), SURE / np.sqrt(alike.shape[1])) / np.sqrt(len(values))
        alike = np.column_stack([alike, alike.mean(axis=1)])
        alike = alike / np.where(alike[0] > sure, np.clip(2 * alike[0] - alike[1], alike[0], 1), 1)
    lags, sums = np.arange(1, LAGS + 1)[:, None], 1 + 2 * np.cumsum(alike, axis=0)
    is_enough = lags >= WINDOW * sums
    is_enough[-1] = True
    last, series = is_enough.argmax(axis=0), np.arange(alike.shape[1])
    error = np.sqrt((4 * lags[last, 0] + 2) / len(values))  # relative, of a sum over so many lags
    return float((np.maximum(1, sums[last, series]) * (1 + errors * error)).max())


def _ranked(values: Floats) -> Floats:
    """Return the ranks, 0 to 1, and how far these are from the middle, shape (n, 2 * k); NaN is the smallest."""
    from scipy.stats import rankdata

    ranks = rankdata(np.where(np.isnan(values), -np.inf, values), axis=0) / len(values)
    return np.concatenate([ranks, np.abs(2 * ranks - 1)], axis=1)


def _alike(values: Floats) -> Floats:
    """Return the autocorrelations at each lag, shape (LAGS, k)."""
    apart = np.array([((values[lag:] - values[:-lag]) ** 2).mean(axis=0) for lag in range(1, 2 * LAGS + 1)])
    far = apart[LAGS:].mean(axis=0)
    return np.asarray(1 - np.divide(apart[:LAGS], far, out=np.ones_like(apart[:LAGS]), where=far > 0))
