"""End a race halfway where more rounds would change nothing that matters.

Two looks at a race are two chances to be lucky. The risk of its intervals is divided between them before anything is
measured (weighted Bonferroni, as in a group-sequential trial), so they keep their confidence whenever the race ends.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from gauntlet.race.confidence import median_shift_interval
from gauntlet.race.contender import Contender

LOOK_SHARE = 0.2
"""Of the risk, for the look halfway; the rest is for the end."""
LEAST_ROUNDS = 8
"""Fewer rounds have no finite interval at the confidence of the look, or say little about the noise."""
NARROW = 0.05
"""Every speed-up must be known to this relative distance."""


@dataclass(frozen=True)
class HalfwayLook:
    """The look at a race, and the confidence of its intervals."""

    after_round: int
    required_speedup: float
    """What decides: an interval that holds this needs all rounds."""
    early: float
    """Confidence of the intervals if the race ends here."""
    late: float
    """Confidence of the intervals if it does not."""

    @classmethod
    def of(cls, rounds: int, confidence: float, required_speedup: float | None) -> Self | None:
        """Return the look at a race of so many rounds; None where it is too short, or all rounds are wanted."""
        if required_speedup is None or rounds // 2 < LEAST_ROUNDS:
            return None
        risk = 1 - confidence
        return cls(rounds // 2, required_speedup, 1 - LOOK_SHARE * risk, 1 - (1 - LOOK_SHARE) * risk)

    def ends(self, done: int, contenders: Mapping[str, Contender], reference: str) -> bool:
        """Return whether a race ends after `done` rounds: all is known well, and whether the best suffices."""
        if done != self.after_round:
            return False
        base, required = contenders[reference], math.log(self.required_speedup)
        for batch in base.batches:
            intervals = [self._interval(c, base, batch) for c in contenders.values() if c.runs(batch)]
            best = max((low for _, low, _ in intervals), default=0.0)
            for center, low, high in intervals:
                if max(high - center, center - low) > math.log1p(NARROW):
                    return False
                if low <= required < high and high >= best:  # what is proven to be beaten decides nothing
                    return False
        return True

    def _interval(self, contender: Contender, base: Contender, batch: int) -> tuple[float, float, float]:
        logs = np.log(base.round_quartiles_ms[batch]) - np.log(contender.round_quartiles_ms[batch])
        return median_shift_interval(logs, self.early)
