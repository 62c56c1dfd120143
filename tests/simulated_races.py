"""Races on simulated machines that stutter and jump: what the statistics promise, without running a model.

A noise returns factors of latency for the blocks of a race, one after the other, shape (count,). Blocks that differ by
2 % give ratios that differ by 3 %, as on two shared cores (robust standard deviation 2 to 3 %, 4 to 7 % when wild).
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gauntlet.core.run_report import BenchmarkRow
from gauntlet.race.confidence import median_shift_interval
from gauntlet.race.contender import Contender, Entry
from gauntlet.race.early_stopping import EarlyStop, contenders_to_stop
from gauntlet.race.rows import rows
from tasks.benchmark import BenchmarkConfig

DEFAULT = BenchmarkConfig()
SESSIONS = {"equal processes": None, "unequal processes": list(range(DEFAULT.rounds))}
"""The number of the process of each round; None where all processes of a file are equally fast."""
MIN_FOUND = {"equal processes": 0.95, "unequal processes": 0.90}
RACES, ROUNDS = 100, 16
WARM_UP_ROUNDS = 1
"""The two half blocks before the first round, which nobody is spared."""
KEEP = ("fp32", "control")
Blocks = npt.NDArray[np.float64]
Noise = Callable[[np.random.Generator, int], Blocks]


def normal(random: np.random.Generator, count: int, deviation: float = 0.02) -> Blocks:
    """Independent blocks."""
    return np.exp(deviation * random.standard_normal(count))


def bursts(random: np.random.Generator, count: int) -> Blocks:
    """One block in twenty takes up to three times as long."""
    hit = random.random(count) < 0.05
    return normal(random, count) * np.where(hit, 1 + 2 * random.random(count), 1)


def sticky_modes(random: np.random.Generator, count: int) -> Blocks:
    """Two modes 30 % apart; the machine stays in one for about 20 blocks."""
    return normal(random, count, 0.015) * np.where(np.cumsum(random.random(count) < 0.05) % 2, 1.3, 1)


NOISES: dict[str, Noise] = {"bursts": bursts, "sticky_modes": sticky_modes}
PROCESSES = 0.007
"""What processes of one file differ by, as a standard deviation: pairs of them by 1 %."""


def rounds(
    random: np.random.Generator, noise: Noise, costs_ms: list[float], count: int, sessions: list[int] | None = None
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


def contender(name: str, times_ms: Blocks) -> Contender:
    """Return a contender with these measurements."""
    made = Contender(name, Entry(model=None), worker=None)  # type: ignore[arg-type] - nothing is run any more
    made.round_medians_ms = made.round_quartiles_ms = made.calls_ms = {1: list(times_ms)}
    return made


def raced(
    noise: Noise, speedup: float, seed: int, sessions: list[int] | None = None, races: int = RACES
) -> list[BenchmarkRow]:
    """Return the row of one candidate from each race; by default, all processes of a file are equally fast."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(races):
        times = rounds(random, noise, [3.0, 3.0 / speedup, *[3.0] * 4], DEFAULT.rounds, sessions)
        candidate = contender("candidate", times[1])
        found += rows(candidate, contender("fp32", times[0]), resolution=DEFAULT.resolution)
    return found


def winner(times: dict[str, Blocks], names: list[str]) -> str:
    """Return the fastest, against the reference in the same rounds."""
    return max(names, key=lambda name: median_shift_interval(np.log(times["fp32"]) - np.log(times[name]))[0])


def eliminate(
    times: dict[str, Blocks], count: int, usual: dict[str, str] | None = None
) -> tuple[dict[str, EarlyStop], float]:
    """Run a race whose times are known; return who was dropped, and the time spent as a share of the whole race's."""
    drops: dict[str, EarlyStop] = {}
    spent = sum(float(np.mean(series)) for series in times.values()) * WARM_UP_ROUNDS
    whole = spent + sum(float(series[:count].sum()) for series in times.values())
    for done in range(1, count + 1):
        running = {name: series[:done] for name, series in times.items() if name not in drops}
        spent += sum(float(series[-1]) for series in running.values())
        drops |= contenders_to_stop(running, keep=KEEP, contenders=len(times), rounds=count, baselines=usual)
    return drops, spent / whole


def field(random: np.random.Generator) -> dict[str, float]:
    """Return the costs of a reference, its control and 22 candidates; up to three of these are nearly the best."""
    near = 0.3 * random.uniform(1, 1.06, random.integers(1, 4))
    costs = [10.0, 10.0, *(10 * near), *(10 * np.exp(random.uniform(-0.7, 0.7, 22 - len(near))))]
    return dict(zip([*KEEP, *(f"c{i}" for i in range(22))], costs, strict=True))


def simulated(random: np.random.Generator, noise: Noise, costs: dict[str, float]) -> dict[str, Blocks]:
    """Return the times of one race, by contender."""
    return dict(zip(costs, rounds(random, noise, [*costs.values()], ROUNDS), strict=True))


def many_candidates(noise: Noise, races: int, seed: int = 3) -> tuple[int, float]:
    """Race 24 contenders; return in how many the winner differs or the reference left, and the mean share of time."""
    random, others, shares = np.random.default_rng(seed), 0, []
    for _ in range(races):
        times = simulated(random, noise, field(random))
        drops, share = eliminate(times, ROUNDS)
        left = [name for name in times if name not in drops]
        others += winner(times, left) != winner(times, [*times]) or not {*KEEP} <= {*left}
        shares.append(share)
    return others, float(np.mean(shares))


def best_dropped(noise: Noise, races: int, seed: int = 4) -> int:
    """Race nearly equal candidates; return in how many races the best one is dropped."""
    random, mistakes = np.random.default_rng(seed), 0
    for _ in range(races):
        costs = dict.fromkeys(KEEP, 3.0) | {f"c{i}": random.uniform(2.9, 3.1) for i in range(10)}
        drops, _ = eliminate(simulated(random, noise, costs), ROUNDS)
        mistakes += min(costs, key=lambda name: costs[name]) in drops
    return mistakes
