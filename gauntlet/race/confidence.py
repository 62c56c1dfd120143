"""Confidence of a comparison: an exact interval for paired differences, and percentile bounds."""

import math
from bisect import bisect_left
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, ndtri

CONFIDENCE = 0.95
RESOLUTION = 0.02
"""Added to each end of a speed-up's interval, which only knows its own rounds: races of the same files minutes apart
differ by that much (`benchmarks/busy_machine.py`)."""
MAX_ROUNDS = 1000
CAP_SHARE = 1 / 3
"""Where the ranks of the signed-rank test are capped, as a share of the count."""


def median_shift_interval(values: npt.ArrayLike, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Return by how much paired differences are shifted from zero, and a confidence interval for it.

    It inverts a signed-rank test whose ranks are capped at a third of the count: between the sign test (cap 1), which
    outliers hardly move, and Wilcoxon's (no cap), which loses less to small noise (Hollander, Wolfe and Chicken,
    Nonparametric Statistical Methods, 2014, chapter 3). Where two models differ only by the drawn order, the
    signs are fair coin tosses whatever the noise is, so the test is exact. The estimate is the shift at which the
    test is balanced (Hodges and Lehmann, Annals of Mathematical Statistics 34, 1963).

    Returns the estimate, the lower and the upper end for differences of shape (n,). The interval is infinite with too
    few values for the confidence (fewer than 6 for 95 %); where a value is NaN or there is none, the estimate is NaN.
    """
    x = np.asarray(values, dtype=np.float64)
    n = len(x)
    if n == 0 or not np.isfinite(x).all():
        return math.nan, -math.inf, math.inf
    total, rejected = int(_scores(n).sum()), _rejected(n, confidence)
    # The sum of the scores of the values above a shift falls at the means of two values, and nowhere else.
    steps = np.unique((x[:, None] + x)[np.triu_indices(n)] / 2)

    def above(gap: int) -> int:
        """Return the sum of scores for a shift between `steps[gap - 1]` and `steps[gap]`."""
        if gap in (0, len(steps)):
            return 0 if gap else total
        ranks = capped_ranks(x - (steps[gap - 1] + (steps[gap] - steps[gap - 1]) / 2))
        return int(ranks[ranks > 0].sum())

    def step_to(most: float) -> float:
        """Return the step after which the sum is at most `most`."""
        return float(steps[bisect_left(range(len(steps) + 1), -most, key=lambda gap: -above(gap)) - 1])

    center = (step_to(total / 2) + step_to(math.nextafter(total / 2, 0))) / 2
    if rejected == 0:
        return center, -math.inf, math.inf
    return center, min(step_to(total - rejected), center), max(step_to(rejected - 0.5), center)


def capped_ranks(differences: npt.ArrayLike) -> npt.NDArray[np.int_]:
    """Return the signed, capped ranks of the test, shape (n,)."""
    x = np.asarray(differences, dtype=np.float64)
    ranks = np.empty(len(x), dtype=np.int_)
    ranks[np.argsort(np.abs(x), kind="stable")] = _scores(len(x))
    return np.where(x > 0, ranks, -ranks)


@lru_cache
def _scores(n: int) -> npt.NDArray[np.int_]:
    return np.minimum(np.arange(1, n + 1), max(1, round(CAP_SHARE * n)))


@lru_cache
def _rejected(n: int, confidence: float) -> int:
    """Return how many of the smallest sums of scores the two-sided test rejects on each side."""
    chance = np.zeros(int(_scores(n).sum()) + 1)
    chance[0] = 1.0
    for score in _scores(n).tolist():  # each is above or below with probability 0.5
        chance[score:] = chance[score:] + chance[:-score]
        chance /= 2
    return int(np.searchsorted(np.cumsum(chance), (1 - confidence) / 2, side="right"))


def shared_confidence(tests: int) -> tuple[float, ...]:
    """Return the confidence of each of several tests, one after another until one succeeds, that share one risk.

    Every test is one more chance to be lucky. The risk of 5 % is divided before anything is measured: half to the first
    test, half of the rest to the next one, and all of the rest to the last (weighted Bonferroni; Holm, Scandinavian
    Journal of Statistics 6, 1979). So the chance that any test succeeds by luck is that of a single one.
    """
    shares = [0.5 ** (place + 1) for place in range(tests - 1)]
    return tuple(1 - (1 - CONFIDENCE) * share for share in (*shares, 1 - sum(shares)))


def rounds_for(confidence: float, rounds: int) -> int:
    """Return the number of rounds whose interval is about as narrow at a confidence as that of `rounds` at 95 %."""
    ratio = float(ndtri((1 + confidence) / 2) / ndtri((1 + CONFIDENCE) / 2))
    return min(MAX_ROUNDS, math.ceil(rounds * ratio**2 - 1e-9))


def least_rounds(confidence: float) -> int:
    """Return the number of rounds below which an interval is infinite: 6 at 95 %."""
    return math.ceil(1 - math.log2(1 - confidence))


def rounds_to_resolve(interval: tuple[float, float, float], bound: float, rounds: int) -> int | None:
    """Return how many more rounds would probably put the whole interval on its estimate's side of a bound.

    Assumes that the width of the interval falls with the square root of the count and that the estimate stays.

    The interval is the estimate, lower and upper end of a shift. None if no number suffices: the estimate lies within
    the bounds, the interval is infinite, or it would take more rounds than a race may have.
    """
    center, low, high = interval
    distance, reach = abs(center) - bound, center - low if center > 0 else high - center
    if not (distance > 0 and math.isfinite(reach)):
        return None
    more = max(1, math.ceil(rounds * (reach / distance) ** 2) - rounds)
    return more if more <= MAX_ROUNDS else None


def percentile_bound(values: npt.ArrayLike, percentile: float, confidence: float = CONFIDENCE) -> float | None:
    """Return an upper bound of the percentile, or None where there are too few values for the confidence.

    The order statistic that MLPerf's early stopping reports (MLCommons, MLPerf Inference Rules, appendix on early
    stopping): were the percentile larger, that few values would lie above it with a probability of at most 1 -
    confidence. It needs 29 values for the 90th and 299 for the 99th. It assumes independent values; calls of one
    process are not quite independent, so it describes the measurement and does not predict later ones.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    n = len(ordered)
    allowed = int(np.searchsorted(bdtr(np.arange(n), n, 1 - percentile / 100), 1 - confidence, side="right"))
    return float(ordered[n - allowed]) if allowed else None
