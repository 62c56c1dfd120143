"""Evidence that may be looked at after every sample: test martingales for a change at an unknown time.

A test martingale is the wealth of a gambler who starts with 1 and bets against the hypothesis. While the hypothesis
holds, the wealth reaches 1/a with a probability of at most a, at whatever times one looks (Ville 1939; Shafer and
Vovk, Game-Theoretic Foundations for Probability and Finance, 2019). The change may come late, so the wealth is spread
over gamblers that begin at every sample, and over several ways to bet; what has not begun is kept.

    log wealth at t = log( R(t) + sum over ways k and starts s of w(s)/K * product of the factors of k from s to t )

with weights w that sum to 1 - R(t): half at the first sample, the rest with a tail so heavy that a change after t
samples costs little more than log(t).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Floats

FIRST = 0.5
"""Weight of a start at the first sample."""
SCALE = 100.0
"""Samples over which the weight of a start falls slowly."""
CHUNK = 8192

LogFactors = Callable[[slice], Floats]
"""Returns the logarithms of the factors of some samples, shape (n, K); each has an expectation of at most 1."""


@dataclass(frozen=True)
class Wealth:
    """The wealth after each sample."""

    log: Floats
    """Natural logarithm, shape (n,)."""
    _log_factors: LogFactors

    def first_above(self, level: float) -> int | None:
        """Return the first sample after which the wealth reaches 1/level; None where it never does."""
        reached = np.flatnonzero(self.log >= -np.log(level))
        return int(reached[0]) if len(reached) else None

    def best_bet(self, until: int) -> tuple[int, int]:
        """Return the way to bet that has won most up to a sample, and the start that explains it best."""
        sums = _Sums()
        for part in _parts(until + 1):
            sums.add(self._log_factors(part), part.start)
        best = int(np.argmax(sums.total + sums.started))
        starts = [self._log_factors(part)[:, best] for part in _parts(until + 1)]
        before = np.concatenate([[0.0], np.cumsum(np.concatenate(starts))[:-1]])
        return best, int(np.argmax(_log_weights(0, until + 1) - before))


class _Sums:
    """The logarithm of the product of all factors, and of the sum of weighted starts, for each way to bet."""

    def __init__(self) -> None:
        self.total: Floats = np.zeros(0)
        self.started: Floats = np.zeros(0)

    def add(self, log_factors: Floats, first: int) -> Floats:
        """Take the next samples; return the logarithm of the invested wealth after each, shape (n,)."""
        ways = log_factors.shape[1]
        if not len(self.total):
            self.total, self.started = np.zeros(ways), np.full(ways, -np.inf)
        totals = self.total + np.cumsum(log_factors, axis=0)
        before = np.concatenate([self.total[None], totals[:-1]])
        begun = _log_weights(first, len(log_factors))[:, None] - before
        started = np.logaddexp.accumulate(np.concatenate([self.started[None], begun]), axis=0)[1:]
        self.total, self.started = totals[-1], started[-1]
        each = totals + started
        most = each.max(axis=1)
        return np.asarray(most + np.log(np.mean(np.exp(each - most[:, None]), axis=1)))


def wealth(log_factors: LogFactors, samples: int) -> Wealth:
    """Return the wealth of a mixture of ways to bet and of times to begin."""
    sums, parts = _Sums(), []
    for part in _parts(samples):
        invested = sums.add(log_factors(part), part.start)
        kept = np.log1p(-FIRST) + np.log(_reserve(np.arange(part.start + 1, part.stop + 1)))
        parts.append(np.logaddexp(kept, invested))
    return Wealth(np.concatenate(parts) if parts else np.zeros(0), log_factors)


def _reserve(samples: npt.NDArray[np.int64]) -> Floats:
    """Return the share of the later starts that have not begun after so many samples."""
    return np.asarray(np.log(SCALE) / np.log(SCALE + samples))


def _log_weights(first: int, count: int) -> Floats:
    """Return the logarithms of the weights of the starts at samples `first`, `first` + 1 ..."""
    samples = np.arange(first, first + count)
    weights = (1 - FIRST) * (_reserve(samples) - _reserve(samples + 1))
    if first == 0:
        weights[0] += FIRST
    return np.asarray(np.log(weights))


def _parts(samples: int) -> list[slice]:
    return [slice(start, min(start + CHUNK, samples)) for start in range(0, samples, CHUNK)]
