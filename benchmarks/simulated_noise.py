"""Machines that disturb a measurement: what each does to the blocks of a race, one after the other.

Every function returns factors of latency, shape (count,). Blocks that differ by 2 % give ratios that differ by 3 %,
which is what the rounds of real races on two shared cores did (robust standard deviation 2 to 3 %, 4 to 7 % with the
wild ones).
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Blocks = npt.NDArray[np.float64]
Noise = Callable[[np.random.Generator, int], Blocks]


def normal(random: np.random.Generator, count: int, deviation: float = 0.02) -> Blocks:
    """Independent blocks."""
    return np.exp(deviation * random.standard_normal(count))


def drift(random: np.random.Generator, count: int) -> Blocks:
    """A processor that gets slower and slower, by 60 % in all."""
    return np.linspace(1, 1.6, count) * normal(random, count)


def autocorrelated(random: np.random.Generator, count: int) -> Blocks:
    """A slow wander: each block is like the one before."""
    steps, log = 0.02 * random.standard_normal(count), np.empty(count)
    log[0] = steps[0] / np.sqrt(1 - 0.9**2)
    for i in range(1, count):
        log[i] = 0.9 * log[i - 1] + steps[i]
    return np.exp(log)


def bursts(random: np.random.Generator, count: int) -> Blocks:
    """One block in twenty takes up to three times as long."""
    hit = random.random(count) < 0.05
    return normal(random, count) * np.where(hit, 1 + 2 * random.random(count), 1)


def visitors(random: np.random.Generator, count: int) -> Blocks:
    """Now and then another program runs for 3 to 11 blocks, which take 1.5 to 2.5 times as long."""
    factors = normal(random, count)
    for _ in range(random.poisson(count / 60)):
        start = random.integers(count)
        factors[start : start + random.integers(3, 12)] *= 1.5 + random.random()
    return factors


def bimodal(random: np.random.Generator, count: int) -> Blocks:
    """Three blocks in ten fall into a mode that is 4 % slower."""
    return normal(random, count, 0.015) * np.where(random.random(count) < 0.3, 1.04, 1)


def sticky_modes(random: np.random.Generator, count: int) -> Blocks:
    """Two modes 30 % apart; the machine stays in one for about 20 blocks."""
    return normal(random, count, 0.015) * np.where(np.cumsum(random.random(count) < 0.05) % 2, 1.3, 1)


NOISES: dict[str, Noise] = {
    function.__name__: function for function in (normal, drift, autocorrelated, bursts, visitors, bimodal, sticky_modes)
}


PROCESSES = 0.007
"""What processes of one file differ by, as a standard deviation: pairs of them by 1 %."""


def rounds(
    random: np.random.Generator,
    noise: Noise,
    costs_ms: list[float],
    count: int,
    sessions: list[int] | None = None,
) -> Blocks:
    """Return the times of a race, shape (contenders, rounds): in each round every contender runs once, in any order.

    `sessions`, the number of the session of each round, gives every session of every contender a speed of its own.
    """
    slots = noise(random, count * len(costs_ms)).reshape(count, len(costs_ms))
    times = np.array(costs_ms)[:, None] * random.permuted(slots, axis=1).T
    if sessions is None:
        return times
    offsets = np.exp(PROCESSES * random.standard_normal((len(costs_ms), max(sessions) + 1)))
    return times * offsets[:, sessions]
