"""Does one feature of a stream that follows a cycle, such as that of a day, still have the distribution of before?

Requests at noon are unlike those at night although nothing has changed. So two gamblers bet, and either one's wealth
counts by half:

- one waits for the end of each season and bets on its samples in random order, which hides the cycle,
- one bets at once on a sample's rank among those of the same hour of earlier seasons. The first season has none. There,
  ranks are among the reference, and the bets are fair against every distribution whose density is at most `STATES`
  times the reference's: an hour of the cycle is part of the reference.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Floats
from wings.lifecycle.library.monitoring.autocorrelation import autocorrelation_times
from wings.lifecycle.library.monitoring.drift_evidence import conformal_p_values, drift_wealth, log_bets
from wings.lifecycle.library.monitoring.judged_samples import HOUR_S
from wings.lifecycle.library.monitoring.martingale import Wealth, wealth

STATES = 8
"""No state of the cycle is less than 1/`STATES` of a season: three hours of a day."""
PHASES = 24
"""Parts of a season, or more where they would be longer than an hour."""


@dataclass(frozen=True)
class _SeasonalWealth(Wealth):
    """The wealth of both gamblers."""

    at_once: Wealth
    held: Floats
    """The highest of the patient one, natural logarithm, shape (n,): known at the ends of seasons."""
    whole: Wealth
    """The same one's after each sample, in the order in which it bets on them."""
    seasons: npt.NDArray[np.int64]
    """Number of each sample's season."""

    def best_bet(self, until: int) -> tuple[int, int]:
        """Return the way to bet that has won most up to a sample, and the start that explains it best."""
        if self.at_once.log[until] >= self.held[until]:
            return self.at_once.best_bet(until)
        way, start = self.whole.best_bet(int(np.argmax(self.whole.log[: until + 1] >= self.held[until])))
        return way, int(np.searchsorted(self.seasons, self.seasons[start]))  # the order changes within seasons alone


def seasonal_wealth(reference: Floats, stream: Floats, times: Floats, season_h: float, *, seed: int) -> Wealth:
    """Return the evidence after each sample that more than a cycle of `season_h` hours has changed, shape (n,).

    Args:
        reference: samples of all states of the cycle.
        stream: shape (n,); NaN where the log does not have the feature.
        times: of the samples, in seconds, none after a later one's, shape (n,).
        season_h: of requests that follow no cycle, 0: then all are compared with the reference at once.
        seed: breaks ties.
    """
    if not season_h or not len(stream):
        return drift_wealth(reference, stream, seed=seed)
    hours = (times - times[0]) / HOUR_S
    seasons = (hours // season_h).astype(np.int64)
    phases = ((hours % season_h) / min(1, season_h / PHASES)).astype(np.int64)
    p, known, t = _p_values(reference, stream, seasons, phases, seed), ~np.isnan(stream), np.ones(len(stream))
    t[known] = autocorrelation_times(np.stack([p, np.abs(2 * p - 1)], axis=1)[known])
    weights = known / t
    careful = (seasons == 0)[:, None] * _caution()
    at_once = wealth(lambda part: (log_bets(p[part]) - careful[part]) * weights[part, None], len(stream))

    ends = np.flatnonzero(np.diff(seasons))
    order = np.lexsort((np.random.default_rng(0).random(len(seasons)), seasons))[: ends[-1] + 1 if len(ends) else 0]
    last = np.maximum.accumulate(np.where(known, np.arange(len(stream)), 0))
    at_end = last[np.append(ends, len(stream) - 1)][np.cumsum(np.append(0, np.diff(seasons) > 0))]
    whole = drift_wealth(reference, stream[order], seed=seed, times=t[at_end[order]])
    highest = np.maximum.accumulate(whole.log)
    held = np.concatenate([[0.0], highest[ends]])[np.searchsorted(ends, np.arange(len(stream)), "right")]
    either = np.maximum(at_once.log, held) - np.log(2)
    return _SeasonalWealth(either, at_once._log_factors, at_once, held, whole, seasons)


def _p_values(
    reference: Floats, stream: Floats, seasons: npt.NDArray[np.int64], phases: npt.NDArray[np.int64], seed: int
) -> Floats:
    """Return ranks among the reference in the first season, then among samples of the same phase of earlier ones."""
    known, p = ~np.isnan(stream), np.full(len(stream), 0.5)
    first = known & (seasons == 0)
    p[first] = _ranks(np.sort(reference), stream[first], seed)
    for phase in np.unique(phases[known & (seasons > 0)]).tolist():
        same = known & (phases == phase)
        later = same & (seasons > 0)
        p[later] = conformal_p_values(stream[same & (seasons == 0)], stream[later], seed=(seed, phase))
    return p


def _ranks(reference: Floats, samples: Floats, seed: int) -> Floats:
    """Return each sample's rank among the sorted reference and itself, as a share."""
    below = np.searchsorted(reference, samples, "left")
    equal = np.searchsorted(reference, samples, "right") - below
    return np.asarray((below + np.random.default_rng(seed).random(len(samples)) * (equal + 1)) / (len(reference) + 1))


@cache
def _caution() -> Floats:
    """Return what is taken from the logarithm of each bet, shape (K,), so that it is fair against all such densities.

    A density of at most `STATES` gains most where it lies on the best 1/`STATES` of the p-values.
    """
    logits = np.linspace(-27, 27, 20_001)  # the bets have poles at the ends
    p = 1 / (1 + np.exp(-logits))
    bets, mass = np.exp(log_bets(p)), p * (1 - p) * (logits[1] - logits[0])
    order = np.argsort(-bets, axis=0)
    best = np.diff(np.minimum(np.cumsum(mass[order], axis=0), 1 / STATES), axis=0, prepend=0)
    return np.asarray(np.log(STATES * (best * np.take_along_axis(bets, order, axis=0)).sum(axis=0)))
