"""How much do samples tell that depend on each other? Requests of one user, or of one minute, are alike.

n samples with the autocorrelations r(k) tell as much as n / t independent ones, with the integrated autocorrelation
time t = 1 + 2 * (r(1) + r(2) + ...) (Sokal, Monte Carlo Methods in Statistical Mechanics, 1997). So the logarithm of a
bet on a sample is divided by t. Where samples that are t apart are independent, that is no more than the mean of t
fair games, one on every t-th sample.

The autocorrelations come from mean squared differences at a lag, against those at longer lags. A lasting change adds
to both alike, so it does not count as dependence, as it would against the variance.
"""

import numpy as np

from wings.lifecycle.library.monitoring.martingale import Floats

LAGS = 16
"""Dependence over more samples is not seen."""
FIRST_SAMPLES, FIRST_TIME = 64, 2.0
"""So many samples are needed for an estimate, and until then the time is taken to be this."""
RECENT = 4096
"""Samples that an estimate is of."""
MARGIN = 4.0
"""Divided by the root of the samples, what an estimate is increased by: about half of its standard error."""


def autocorrelation_times(values: Floats) -> Floats:
    """Return for each sample the autocorrelation time of those before it, at least 1, shape (n,).

    Args:
        values: shape (n, k), as k series of which the most dependent one counts.
    """
    times, end = np.full(len(values), FIRST_TIME), FIRST_SAMPLES
    while end < len(values):
        following = end + min(end // 4, RECENT)
        times[end:following] = _time(values[max(0, end - RECENT) : end])
        end = following
    return times


def _time(values: Floats) -> float:
    apart = np.array([((values[lag:] - values[:-lag]) ** 2).mean(axis=0) for lag in range(1, 2 * LAGS + 1)])
    far = apart[LAGS:].mean(axis=0)
    alike = 1 - np.divide(apart[:LAGS], far, out=np.ones_like(apart[:LAGS]), where=far > 0)
    return max(1.0, 1 + 2 * float(alike.sum(axis=0).max())) + MARGIN / float(np.sqrt(len(values)))
