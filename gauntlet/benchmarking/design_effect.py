"""Design effect of process generations: how much less their rounds say than independent ones."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gauntlet.benchmarking.confidence import capped_ranks

EQUAL_WEIGHT = 20
"""Prior degrees of freedom for equal generations, as in a moderated t-test: a few generations say little."""


def process_generation(rounds: int, rounds_per_process: int) -> list[int]:
    """Return the generation of each round; each generation has at least `rounds_per_process` rounds."""
    generations = max(1, rounds // rounds_per_process)
    return [done * generations // rounds for done in range(rounds)]


def design_effect(series: Sequence[npt.ArrayLike], generations: Sequence[int]) -> float:
    """Return the variance of a mean over that of as many independent rounds, at least 1.

    Two processes of one file differ for their whole lifetime, so the rounds of a generation form a cluster. An analysis
    of variance compares the variance between generations with the variance within (Kish, Survey Sampling, 1965, section
    5.4). One contender has few generations, so those of all contenders are pooled, and moderated by `EQUAL_WEIGHT`. The
    analysis uses signed ranks, capped as in `median_shift_interval`, to limit the weight of outliers.

    Args:
        series: logarithms of ratios, one array of shape (rounds,) per contender.
        generations: process generation of each round.
    """
    clusters = [np.flatnonzero(np.equal(generations, number)) for number in sorted(set(generations))]
    rounds, count = len(generations), len(clusters)
    if not series or not 1 < count < rounds:
        return 1.0
    between = within = 0.0
    for differences in series:
        values = np.asarray(differences, dtype=np.float64)
        ranks = capped_ranks(values - np.median(values)).astype(np.float64)
        ranks -= ranks.mean()
        parts = [ranks[cluster] for cluster in clusters]
        between += sum(len(part) * float(part.mean()) ** 2 for part in parts)
        within += sum(float(((part - part.mean()) ** 2).sum()) for part in parts)
    freedom = len(series) * (count - 1)
    between, within = between / freedom, within / (len(series) * (rounds - count))
    cluster_size = rounds / count
    independent = (between + (cluster_size - 1) * within) / cluster_size
    if independent == 0:
        return 1.0
    return max(1.0, (freedom * between / independent + EQUAL_WEIGHT) / (freedom + EQUAL_WEIGHT))
