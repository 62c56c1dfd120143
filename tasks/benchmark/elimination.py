"""Which contenders of a race need no more rounds: they are slower than the leader, or a session that gains nothing."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, stdtrit

FIRST_LOOK = 3
"""Rounds before anybody can be dropped: with fewer there is next to no estimate of the noise."""
RISK = 0.05
"""The chance, over a whole race, that the best contender is dropped by mistake, if its noise is normal."""
LAST_HOPE = 0.1
"""The chance, for each session that leaves as no faster, that the whole race would have shown it to be: as is usual
where a trial is ended for futility. A gain that is clear is not overlooked so."""
FIELD_WEIGHT = 12
"""How many rounds of its own the noise of the whole field counts for, where that many differences support it."""
NEAR = 0.02
"""Who is proven slower by no more than this stays: of those as fast as each other, the most exact one may be chosen. A
session that gains no more is of no use, for it is the same file."""
WILD = 2.0
"""Standard deviations of the field's noise beyond which a difference counts for no more than that."""
WILD_SHARE = 0.2
"""Of all values: so many may be wild, and the others tell the deviation. Where more are, all seem to be tame."""


@dataclass(frozen=True)
class Drop:
    """Why a contender ran no further at one batch size."""

    after_round: int
    rival: str
    """The leader that it is slower than, or the same file's usual session that it is no faster than."""
    reason: Literal["slower", "no faster"] = "slower"


def leaving(
    times_ms: Mapping[str, Sequence[float]],
    *,
    keep: Sequence[str],
    contenders: int,
    rounds: int,
    usual: Mapping[str, str] | None = None,
) -> dict[str, Drop]:
    """Return who needs no more rounds, by those that all of them ran.

    Slower than the leader by more than `NEAR`: successive elimination (Even-Dar, Mannor and Mansour, JMLR 7, 2006) on
    the logarithms of paired ratios. The risk is shared out evenly among all contenders and all looks (Bonferroni).

    No faster than the same file's usual session: stochastic curtailment (Lan, Simon and Halperin, Communications in
    Statistics C 1, 1982), by what the rounds so far predict of the whole race (Spiegelhalter, Freedman and Blackburn,
    Controlled Clinical Trials 7, 1986). It leaves when the mean of all rounds will hardly be a gain above `NEAR`. Such
    a prediction neither rises nor falls on average, so many looks take no more risk than one.

    The noise is moderated (Smyth, Statistical Applications in Genetics and Molecular Biology 3, 2004): three rounds of
    one contender say little of it, those of the whole field much, so both are weighed, and no variance counts as
    smaller than that of the field. Wild rounds are drawn in to `WILD` deviations (winsorised; Tukey, Annals of
    Mathematical Statistics 33, 1962), which the residuals from the medians of contenders and rounds tell.

    Args:
        times_ms: one value a round, of those still running; the same number for each.
        keep: never dropped; the reference, and its control, which is the same model and bears its name as a leader.
        contenders: how many started.
        rounds: how many the race has; each one from the third but the last is a look.
        usual: of a file in a further session, the same file in the usual one.
    """
    names = list(times_ms)
    done = len(times_ms[names[0]])
    if not FIRST_LOOK <= done < rounds or len(names) < 2:
        return {}
    logs = np.log([times_ms[name] for name in names])
    leader = int(np.argmin(np.median(logs, axis=1)))
    of_the_field, most = _noise(logs)
    weight = min(FIELD_WEIGHT, (len(names) - 1) * (done - 1))
    freedom = weight + done - 1
    slower = float(stdtrit(freedom, 1 - RISK / ((contenders - 1) * (rounds - FIRST_LOOK)))) / math.sqrt(done)
    no_faster = float(stdtrit(freedom, 1 - LAST_HOPE)) * math.sqrt(1 / done - 1 / rounds)

    def behind(one: int, other: int) -> tuple[float, float]:
        """Return by how much one is slower than another, and the deviation of a round's difference."""
        found = logs[one] - logs[other]
        middle = np.median(found)
        found = np.clip(found, middle - most, middle + most)
        own = (weight * of_the_field + (done - 1) * float(found.var(ddof=1))) / freedom
        return float(found.mean()), math.sqrt(max(own, of_the_field))

    found = {}
    for i, name in enumerate(names):
        if name in keep:
            continue
        mean, spread = behind(i, leader)
        if mean - NEAR > slower * spread:
            found[name] = Drop(done, keep[0] if names[leader] in keep else names[leader])
        elif (rival := (usual or {}).get(name, "")) in times_ms:
            mean, spread = behind(i, names.index(rival))
            if mean + NEAR > no_faster * spread:
                found[name] = Drop(done, rival, "no faster")
    return found


def _noise(logs: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the variance of a round's difference of any two, and how far one may be from its middle."""
    residuals = logs - np.median(logs, axis=1, keepdims=True)
    residuals -= np.median(residuals, axis=0)
    residuals -= np.median(residuals, axis=1, keepdims=True)
    sizes = np.abs(residuals[residuals != 0])  # a median has none, whatever the noise is
    tame = float(np.quantile(sizes, 1 - WILD_SHARE)) if sizes.size else 0.0
    most = WILD * tame / float(ndtri(1 - WILD_SHARE / 2))
    drawn_in = np.clip(residuals, -most, most)
    drawn_in -= drawn_in.mean(axis=1, keepdims=True)
    contenders, rounds = logs.shape
    return 2 * float((drawn_in**2).sum()) / ((contenders - 1) * (rounds - 1)), math.sqrt(2) * most
