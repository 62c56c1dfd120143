"""Which contenders of a race need no more rounds: each is proven slower than the one that leads."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

FIRST_LOOK = 3
"""Rounds before anybody can be dropped: with fewer there is next to no estimate of the noise."""
RISK = 0.05
"""The chance, over a whole race, that the best contender is dropped by mistake, if its noise is normal."""
FIELD_WEIGHT = 12
"""How many rounds of its own the noise of the whole field counts for, where that many differences support it."""
NEAR = 0.02
"""Who is proven slower by no more than this stays: of those as fast as each other, the most exact one may be chosen."""


@dataclass(frozen=True)
class Drop:
    """Why a contender ran no further at one batch size."""

    after_round: int
    leader: str
    speedup: float
    """Of the dropped one over the leader, so below 1."""


def dominated(
    times_ms: Mapping[str, Sequence[float]], *, keep: Sequence[str], contenders: int, rounds: int
) -> dict[str, Drop]:
    """Return who is proven to be more than `NEAR` slower than the leader, by the rounds that all of them ran.

    Successive elimination (Even-Dar, Mannor and Mansour, JMLR 7, 2006) on the logarithms of paired ratios, with a
    moderated t (Smyth, Statistical Applications in Genetics and Molecular Biology 3, 2004): three rounds of one
    contender say little of its noise, those of the whole field much, so both are weighed. The exact interval of the
    verdicts cannot be so sure after so few rounds. The risk is shared out evenly among all contenders and all looks
    (Bonferroni). A variance counts as no smaller than that of the field.

    Args:
        times_ms: one value a round, of those still running; the same number for each.
        keep: never dropped; the reference, and its control, which is the same model and bears its name as a leader.
        contenders: how many started.
        rounds: how many the race has; each one from the third but the last is a look.
    """
    names = list(times_ms)
    done = len(times_ms[names[0]])
    if not FIRST_LOOK <= done < rounds or len(names) < 2:
        return {}
    logs = np.log([times_ms[name] for name in names])
    leader = int(np.argmin(np.median(logs, axis=1)))
    noise = logs - logs.mean(1, keepdims=True) - logs.mean(0) + logs.mean()
    freedom = (len(names) - 1) * (done - 1)
    of_the_field = 2 * float((noise**2).sum()) / freedom
    weight = min(FIELD_WEIGHT, freedom)
    sure = float(stdtrit(weight + done - 1, 1 - RISK / ((contenders - 1) * (rounds - FIRST_LOOK))))
    found = {}
    for name, log in zip(names, logs, strict=True):
        behind = log - logs[leader]
        own = (weight * of_the_field + (done - 1) * float(behind.var(ddof=1))) / (weight + done - 1)
        spread = math.sqrt(max(own, of_the_field))
        if name not in keep and float(behind.mean()) - NEAR > sure * spread / math.sqrt(done):
            told = keep[0] if names[leader] in keep else names[leader]
            found[name] = Drop(done, told, math.exp(-float(np.median(behind))))
    return found
