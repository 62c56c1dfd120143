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
    """Return who is proven slower than the leader, by the rounds that all of them ran.

    Successive elimination (Even-Dar, Mannor and Mansour, JMLR 7, 2006) on the logarithms of paired ratios, with
    Student's t: the exact interval of the verdicts cannot be so sure after so few rounds. The risk is shared out
    evenly among all contenders and all looks (Bonferroni). A standard deviation counts as no smaller than the one of
    the whole field, because three rounds that agree by chance are no proof of a quiet machine.

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
    of_the_field = math.sqrt(2 * float((noise**2).sum()) / ((len(names) - 1) * (done - 1)))
    sure = float(stdtrit(done - 1, 1 - RISK / ((contenders - 1) * (rounds - FIRST_LOOK))))
    found = {}
    for name, log in zip(names, logs, strict=True):
        behind = log - logs[leader]
        spread = max(float(behind.std(ddof=1)), of_the_field)
        if name not in keep and float(behind.mean()) > sure * spread / math.sqrt(done):
            told = keep[0] if names[leader] in keep else names[leader]
            found[name] = Drop(done, told, math.exp(-float(np.median(behind))))
    return found
