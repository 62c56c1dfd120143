"""A confidence interval for a percentile of the latencies of a server, whose requests wait for each other."""

import math

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, ndtri, stdtrit

from gauntlet.core.arrays import Floats
from gauntlet.race.confidence import CONFIDENCE

SECTIONS = 16
"""Consecutive parts of a run, whose spread shows how much its requests depend on each other."""


def percentile_interval(
    values: npt.ArrayLike, percentile: float, confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """Return a percentile of values in the order of their arrival, shape (n,), and a confidence interval for it.

    A value is outside of the interval where the share of values above it is proven to be another one than
    1 - percentile / 100 (Woodruff, Journal of the American Statistical Association 47, 1952). The share's interval is
    Clopper and Pearson's for the effective number of values (Korn and Graubard, Survey Methodology 24, 1998): where
    late requests come in bursts, `SECTIONS` consecutive parts of the run differ by more than chance, and it is smaller
    by that factor. No distribution is assumed.

    Infinite values, such as requests that were refused, are above all others. The upper end is infinite with too few
    values for the confidence (about 440 for the 99th percentile and 95 %), and all three are NaN without values.
    """
    x = np.asarray(values, dtype=np.float64)
    if len(x) == 0:
        return math.nan, math.nan, math.nan
    candidates, counts, sizes = _late_by_section(x)
    share = 1 - percentile / 100
    low, high = _share_interval(counts, sizes, share, confidence)
    proven_within, proven_beyond = high <= share, low > share
    first = len(candidates) - int(np.argmin([*proven_within[::-1], False]))
    upper = float(candidates[first]) if first < len(candidates) else math.inf
    lower = float(candidates[int(np.argmin(proven_beyond))])  # none is above the largest value, so one is not proven
    return float(np.quantile(x, percentile / 100, method="inverted_cdf")), lower, upper


def _late_by_section(x: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the distinct values, how many values of each section are above each of them, and the sections' sizes."""
    sections = min(SECTIONS, len(x))
    section_of = np.arange(len(x)) * sections // len(x)
    order = np.argsort(x, kind="stable")
    up_to = np.cumsum(np.eye(sections)[section_of[order]], axis=0)
    candidates = np.unique(x)
    last = np.searchsorted(x[order], candidates, side="right") - 1
    return candidates, up_to[-1] - up_to[last], up_to[-1]


def _share_interval(counts: Floats, sizes: Floats, late_share: float, confidence: float) -> tuple[Floats, Floats]:
    """Return the interval of the share for each row of counts by section, shape (k, sections)."""
    n, sections = float(sizes.sum()), len(sizes)
    share = counts.sum(axis=1) / n
    spread = ((counts - share[:, None] * sizes) ** 2).sum(axis=1) * sections / max(1, sections - 1)
    by_chance = n * share * (1 - share)
    effect = np.maximum(1.0, np.divide(spread, by_chance, out=np.ones_like(share), where=by_chance > 0))
    at_percentile = int(np.argmin(share > late_share))
    effect = np.where(share > 0, np.maximum(effect, effect[at_percentile]), 1.0)
    tail = (1 - confidence) / 2
    known = (ndtri(tail) / stdtrit(max(1, sections - 1), tail)) ** 2  # the spread itself is estimated
    effective = known * n / effect
    late = share * effective
    with np.errstate(invalid="ignore"):  # at the ends, which are known
        low = np.where(share > 0, betaincinv(late, effective - late + 1, tail), 0.0)
        high = np.where(share < 1, betaincinv(late + 1, effective - late, 1 - tail), 1.0)
    return low, high
