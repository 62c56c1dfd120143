"""How much less the rounds of one session say than as many independent ones."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tasks.benchmark.certainty import capped_ranks

EQUAL_WEIGHT = 20
"""How many degrees of freedom the belief counts for that sessions are equal, as in a moderated t: a few say little."""


def session_of(rounds: int, rounds_per_session: int) -> list[int]:
    """Return the number of the session of each round: equally many a session, or one more in some, and never fewer."""
    sessions = max(1, rounds // rounds_per_session)
    return [done * sessions // rounds for done in range(rounds)]


def design_effect(series: Sequence[npt.ArrayLike], sessions: Sequence[int]) -> float:
    """Return the variance of a mean over that of as many independent rounds, at least 1.

    Two sessions of one file differ for as long as they live, so their rounds are clusters. An analysis of variance
    compares what lies between the sessions with what lies within (Kish, Survey Sampling, 1965, section 5.4). One
    contender has few sessions, so those of the whole field are pooled, and moderated by `EQUAL_WEIGHT`. It is done on
    signed ranks, capped as in `shift_interval`: a single wild round counts for no more there either.

    Args:
        series: logarithms of ratios, one of shape (rounds,) a contender.
        sessions: number of the session of each round.
    """
    clusters = [np.flatnonzero(np.equal(sessions, number)) for number in sorted(set(sessions))]
    rounds, count = len(sessions), len(clusters)
    if not series or not 1 < count < rounds:
        return 1.0
    between = within = 0.0
    for one in series:
        values = np.asarray(one, dtype=np.float64)
        ranks = capped_ranks(values - np.median(values)).astype(np.float64)
        ranks -= ranks.mean()
        parts = [ranks[cluster] for cluster in clusters]
        between += sum(len(part) * float(part.mean()) ** 2 for part in parts)
        within += sum(float(((part - part.mean()) ** 2).sum()) for part in parts)
    freedom = len(series) * (count - 1)
    between, within = between / freedom, within / (len(series) * (rounds - count))
    a_session = rounds / count
    independent = (between + (a_session - 1) * within) / a_session
    if independent == 0:
        return 1.0
    return max(1.0, (freedom * between / independent + EQUAL_WEIGHT) / (freedom + EQUAL_WEIGHT))
