"""Early stopping: contenders proven slower than the leader, and session variants without a gain, run no further."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, stdtrit

FIRST_LOOK = 3
"""First round after which a contender may be stopped: fewer rounds give hardly any estimate of the noise."""
ERROR_PROBABILITY = 0.05
"""Probability over a whole race of stopping the best contender by mistake, for normal noise."""
FUTILITY_PROBABILITY = 0.1
"""Probability, per session variant stopped as no faster, that the whole race would have shown a gain: usual when
a trial is stopped for futility. Clear gains are not missed."""
POOLED_WEIGHT = 12
"""Number of own rounds that the pooled noise of all contenders counts as, where as many differences support it."""
MIN_DIFFERENCE = 0.03
"""Contenders proven slower by no more than this stay: among equally fast ones, the most exact may be selected. A
session variant, which runs the same file, must gain more than this."""
OUTLIER_DEVIATIONS = 2.0
"""Differences are clipped to this many standard deviations of the pooled noise."""
OUTLIER_SHARE = 0.2
"""Share of values that may be outliers; the others determine the standard deviation."""


@dataclass(frozen=True)
class EarlyStop:
    """Why a contender was stopped at one batch size."""

    after_round: int
    compared_with: str
    """The leader that it is slower than, or the baseline session of the same file that it is no faster than."""
    reason: Literal["slower", "no faster"] = "slower"


def contenders_to_stop(
    times_ms: Mapping[str, Sequence[float]],
    *,
    keep: Sequence[str],
    contenders: int,
    rounds: int,
    baselines: Mapping[str, str] | None = None,
) -> dict[str, EarlyStop]:
    """Return the contenders that need no more rounds.

    Slower than the leader by more than `MIN_DIFFERENCE`: successive elimination (Even-Dar, Mannor and Mansour, JMLR 7,
    2006) on the logarithms of paired ratios. The error probability is divided evenly among all contenders and all looks
    (Bonferroni).

    No faster than the same file's baseline session: stochastic curtailment (Lan, Simon and Halperin, Communications in
    Statistics C 1, 1982), by the prediction of the whole race from the rounds so far (Spiegelhalter, Freedman and
    Blackburn, Controlled Clinical Trials 7, 1986). It is stopped when the mean of all rounds is unlikely to gain more
    than `MIN_DIFFERENCE`. Such a prediction neither rises nor falls on average, so many looks carry no more risk than
    one.

    The noise is moderated (Smyth, Statistical Applications in Genetics and Molecular Biology 3, 2004): three rounds of
    one contender say little about it, those of all contenders much, so both are weighted, and no variance counts as
    smaller than the pooled one. Outliers are clipped to `OUTLIER_DEVIATIONS` (winsorized; Tukey, Annals of Mathematical
    Statistics 33, 1962), estimated from the residuals from the medians of contenders and rounds.

    Args:
        times_ms: one value per round for each contender still running; the same number for each.
        keep: contenders never stopped: the reference first, then its A/A control, which is reported under its name.
        contenders: number of contenders at the start.
        rounds: number of rounds of the race; each one from `FIRST_LOOK` to the last but one is a look.
        baselines: session variant -> its baseline, the same file with the default options.
    """
    names = list(times_ms)
    if len(names) < 2 or not FIRST_LOOK <= (done := len(times_ms[names[0]])) < rounds:
        return {}
    logs = np.log([times_ms[name] for name in names])
    leader = int(np.argmin(np.median(logs, axis=1)))
    noise = _PooledNoise.from_logs(logs)
    looks = (contenders - 1) * (rounds - FIRST_LOOK)
    slower = float(stdtrit(noise.freedom, 1 - ERROR_PROBABILITY / looks)) / math.sqrt(done)
    no_faster = float(stdtrit(noise.freedom, 1 - FUTILITY_PROBABILITY)) * math.sqrt(1 / done - 1 / rounds)
    stopped = {}
    for i, name in enumerate(names):
        if name in keep:
            continue
        mean, spread = noise.difference(logs[i] - logs[leader])
        if mean - MIN_DIFFERENCE > slower * spread:
            stopped[name] = EarlyStop(done, keep[0] if names[leader] in keep else names[leader])
        elif (baseline := (baselines or {}).get(name, "")) in times_ms:
            mean, spread = noise.difference(logs[i] - logs[names.index(baseline)])
            if mean + MIN_DIFFERENCE > no_faster * spread:
                stopped[name] = EarlyStop(done, baseline, "no faster")
    return stopped


@dataclass(frozen=True)
class _PooledNoise:
    """The pooled noise of all contenders, which moderates that of any two."""

    variance: float
    """Variance of the difference of any two contenders in one round."""
    limit: float
    """Largest distance of a difference from its median; larger ones are clipped."""
    weight: float
    """Number of a pair's own rounds that the pooled noise counts as."""
    freedom: float
    """Degrees of freedom of the weighted variance."""

    @classmethod
    def from_logs(cls, logs: npt.NDArray[np.float64]) -> Self:
        """Estimate it from the logarithms of all times, shape (contenders, rounds)."""
        residuals = logs - np.median(logs, axis=1, keepdims=True)
        residuals -= np.median(residuals, axis=0)
        residuals -= np.median(residuals, axis=1, keepdims=True)
        sizes = np.abs(residuals[residuals != 0])  # the residual of the median itself is zero, whatever the noise is
        inner = float(np.quantile(sizes, 1 - OUTLIER_SHARE)) if sizes.size else 0.0
        limit = OUTLIER_DEVIATIONS * inner / float(ndtri(1 - OUTLIER_SHARE / 2))
        clipped = np.clip(residuals, -limit, limit)
        clipped -= clipped.mean(axis=1, keepdims=True)
        freedom = (logs.shape[0] - 1) * (logs.shape[1] - 1)
        weight = min(POOLED_WEIGHT, freedom)
        variance = 2 * float((clipped**2).sum()) / freedom
        return cls(variance, math.sqrt(2) * limit, weight, weight + logs.shape[1] - 1)

    def difference(self, logs: npt.NDArray[np.float64]) -> tuple[float, float]:
        """Return the mean of one pair's differences, and the standard deviation of one difference."""
        middle = np.median(logs)
        clipped = np.clip(logs, middle - self.limit, middle + self.limit)
        own = (self.weight * self.variance + (len(logs) - 1) * float(clipped.var(ddof=1))) / self.freedom
        return float(clipped.mean()), math.sqrt(max(own, self.variance))
