"""Does one feature of a stream still have the distribution of the reference? A conformal test martingale.

Each sample gets the p-value of its rank among the reference and all samples before it, ties broken at random. While
reference and stream are exchangeable, the p-values are independent and uniform, whatever the distribution is and
however small the reference (Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2nd ed., 2022,
chapter 8). Ranks among the reference alone would not be independent: its own sampling error would raise an alarm in a
long stream. Where samples of the stream depend on each other, each counts for less (`autocorrelation`).
"""

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Floats
from wings.lifecycle.library.monitoring.autocorrelation import autocorrelation_times
from wings.lifecycle.library.monitoring.martingale import Wealth, wealth

POWERS = (0.15, 0.4, 0.7)
"""Exponents of the bets on p-values that are small, large, or both."""
TILTS = {2: (0.5,), 3: (0.7,), 10: (-0.1, 0.15, 0.5)}
"""Number of equal parts of [0, 1] -> shares of the wealth that are put on, or taken from, one of them."""
SMALLEST_P = 1e-12
BLOCK = 256


def drift_wealth(reference: Floats, stream: Floats, *, seed: int, times: Floats | None = None) -> Wealth:
    """Return the evidence against exchangeability after each sample of the stream, shape (n,).

    `seed` breaks ties; the evidence for the first samples is the same when more follow. No bet is placed on a sample
    that is NaN: the log does not have the feature of it. `times` are the autocorrelation times, shape (n,), where the
    order of the stream does not show them.
    """
    known = np.flatnonzero(~np.isnan(stream))
    p_values = conformal_p_values(reference, stream[known], seed=seed)
    weights = np.zeros(len(stream))
    series = np.stack([p_values, np.abs(2 * p_values - 1)], axis=1)
    weights[known] = 1 / (autocorrelation_times(series) if times is None else times[known])
    p = np.full(len(stream), 0.5)
    p[known] = p_values
    return wealth(lambda part: log_bets(p[part]) * weights[part, None], len(stream))


def conformal_p_values(reference: Floats, stream: Floats, *, seed: int | tuple[int, ...]) -> Floats:
    """Return each sample's rank among the reference and the samples before it, itself included, as a share."""
    uniform = np.random.default_rng(seed).random(len(stream))
    pool = np.sort(_ordered(reference))
    p_values = np.empty(len(stream))
    for start in range(0, len(stream), BLOCK):
        block = _ordered(stream[start : start + BLOCK])
        earlier = np.tri(len(block), k=-1, dtype=bool)  # of the same block
        below = np.searchsorted(pool, block, "left")
        equal = np.searchsorted(pool, block, "right") - below
        below = below + (earlier & (block[None, :] < block[:, None])).sum(axis=1)
        equal = equal + (earlier & (block[None, :] == block[:, None])).sum(axis=1)
        seen = len(pool) + np.arange(1, len(block) + 1)
        part = slice(start, start + len(block))
        p_values[part] = (below + uniform[part] * (equal + 1)) / seen
        ordered = np.sort(block)
        pool = np.insert(pool, np.searchsorted(pool, ordered), ordered)
    return p_values


def log_bets(p_values: Floats) -> Floats:
    """Return the logarithms of the bets on some p-values, shape (n, K): densities on [0, 1]."""
    p = np.clip(p_values, SMALLEST_P, 1 - SMALLEST_P)
    ends = np.log(np.stack([p, 1 - p, 2 * np.minimum(p, 1 - p)], axis=1))
    powers = np.concatenate([np.log(power) + (power - 1) * ends for power in POWERS], axis=1)
    tilts = [np.log1p(tilt * (parts * _inside(p, parts) - 1)) for parts, some in TILTS.items() for tilt in some]
    return np.concatenate([powers, *tilts], axis=1)


def _inside(p: Floats, parts: int) -> npt.NDArray[np.bool_]:
    """Return in which of the equal parts of [0, 1] each value is, shape (n, parts)."""
    return np.asarray(np.arange(parts) == np.minimum(p * parts, parts - 1).astype(int)[:, None])


def _ordered(values: Floats) -> Floats:
    """Return values that can be ranked: NaN, which equals nothing, becomes the smallest of all."""
    return np.where(np.isnan(values), -np.inf, values)
