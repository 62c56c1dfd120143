"""What the race's statistics promise, on simulated machines that drift, jump and stutter.

    python benchmarks/race_simulation.py verdicts [--seeds 6] [--races 100]
    python benchmarks/race_simulation.py elimination [--races 60]

`verdicts` counts how often equal models are called different and how often 5 % is found; `elimination` compares a race
with early drop with the whole race. Each prints a table and exits with 1 when a promise is broken. No model runs, so
the figures depend on the statistics alone; `tests/` repeats the hardest noises with these functions.
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np
from results import Figure, Measured, add_result_option, conclude
from simulated_noise import NOISES, Blocks, Noise, rounds

from gauntlet.benchmarking.confidence import median_shift_interval
from gauntlet.benchmarking.contender import Contender, RaceEntry
from gauntlet.benchmarking.early_stopping import MIN_DIFFERENCE, EarlyStop, contenders_to_stop
from gauntlet.benchmarking.rows import rows
from gauntlet.core.run_report import BenchmarkRow
from tasks.benchmark import BenchmarkConfig

DEFAULT = BenchmarkConfig()
FIELD = 6
"""Contenders of a race in `verdicts`."""
SESSIONS = {"equal processes": None, "unequal processes": list(range(DEFAULT.rounds))}
"""The number of the process of each round; None where all processes of a file are equally fast."""
MOST_DIFFERENT = 0.05
LEAST_FOUND = {"equal processes": 0.95, "unequal processes": 0.90}
LEAST_HELD = 0.9
"""Shares of the races: what `verdicts` promises."""
ROUNDS = 16
WARM_UP_ROUNDS = 1
"""The two half blocks before the first round, which nobody is spared."""
KEEP = ("fp32", "control")
MOST_BLOCKS = 0.5
"""Share of the blocks of the whole race: what `elimination` promises."""
MOST_BEST_DROPPED = 0.05
MOST_WORSE = 0.05


def contender(name: str, times_ms: Blocks) -> Contender:
    """Return a contender with these measurements."""
    made = Contender(name, RaceEntry(model=None), worker=None)  # type: ignore[arg-type] - nothing is run any more
    made.round_medians_ms = made.round_quartiles_ms = made.calls_ms = {1: list(times_ms)}
    made.energy_mj = {1: []}
    return made


def raced(
    noise: Noise, speedup: float, seed: int, sessions: list[int] | None = None, races: int = 100
) -> list[BenchmarkRow]:
    """Return the row of one candidate from each race; by default, all processes of a file are equally fast."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(races):
        times = rounds(random, noise, [3.0, 3.0 / speedup, *[3.0] * (FIELD - 2)], DEFAULT.rounds, sessions)
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


def equals(random: np.random.Generator) -> dict[str, float]:
    """Return the costs of a reference, its control and 10 candidates that are within 7 % of each other."""
    return dict.fromkeys(KEEP, 3.0) | {f"c{i}": random.uniform(2.9, 3.1) for i in range(10)}


def in_sessions(random: np.random.Generator) -> tuple[dict[str, float], dict[str, str]]:
    """Return the costs of FP32, its control and two INT8 files, each in five sessions, and each session's usual one."""
    costs, usual = {"fp32": 10.0, "control": 10.0}, {}
    for file, cost in {"fp32": 10.0, "int8": 3.1, "inputs8": 3.1 * random.uniform(0.98, 1.02)}.items():
        costs[file] = cost
        gains = [random.uniform(1.05, 1.8), *random.choice([1, 1, 1, 1.05, 1.1, 0.9], 3)]
        for i, gain in enumerate(gains):
            costs[f"{file} {i}"], usual[f"{file} {i}"] = cost * gain, file
    return costs, usual


def simulated(random: np.random.Generator, noise: Noise, costs: dict[str, float]) -> dict[str, Blocks]:
    """Return the times of one race, by contender."""
    return dict(zip(costs, rounds(random, noise, [*costs.values()], ROUNDS), strict=True))


def blocks_of(drops: dict[str, EarlyStop], names: Sequence[str]) -> float:
    """Return the blocks that were run, as a share of the whole race's; the warm-up counts."""
    spent = sum(drops[name].after_round if name in drops else ROUNDS for name in names)
    return (spent + WARM_UP_ROUNDS * len(names)) / ((ROUNDS + WARM_UP_ROUNDS) * len(names))


def many_candidates(noise: Noise, races: int, seed: int = 3) -> tuple[int, float]:
    """Race 24 contenders; return in how many the winner differs or the reference left, and the mean share of blocks."""
    random, others, shares = np.random.default_rng(seed), 0, []
    for _ in range(races):
        times = simulated(random, noise, field(random))
        drops, _ = eliminate(times, ROUNDS)
        left = [name for name in times if name not in drops]
        others += winner(times, left) != winner(times, [*times]) or not {*KEEP} <= {*left}
        shares.append(blocks_of(drops, [*times]))
    return others, float(np.mean(shares))


def best_dropped(noise: Noise, races: int, seed: int = 4) -> int:
    """Race nearly equal candidates; return in how many races the best one is dropped."""
    random, mistakes = np.random.default_rng(seed), 0
    for _ in range(races):
        costs = equals(random)
        drops, _ = eliminate(simulated(random, noise, costs), ROUNDS)
        mistakes += min(costs, key=lambda name: costs[name]) in drops
    return mistakes


def many_sessions(noise: Noise, races: int, seed: int = 1) -> tuple[int, float]:
    """Race sessions; return in how many races the winner costs over 2 % more, and the mean share of the blocks."""
    random, worse, shares = np.random.default_rng(seed), 0, []
    for _ in range(races):
        costs, usual = in_sessions(random)
        times = simulated(random, noise, costs)
        drops, _ = eliminate(times, ROUNDS, usual)
        whole, early = winner(times, [*costs]), winner(times, [name for name in costs if name not in drops])
        misnamed = any(drop.compared_with != usual[name] for name, drop in drops.items() if drop.reason == "no faster")
        worse += costs[early] > costs[whole] * (1 + MIN_DIFFERENCE) or misnamed
        shares.append(blocks_of(drops, [*costs]))
    return worse, float(np.mean(shares))


def spread(counts: Sequence[int]) -> str:
    """Return the least and the most."""
    return f"{min(counts)} to {max(counts)}"


def verdicts(seeds: int, races: int) -> Measured:
    """Count the verdicts on every noise."""
    rows: list[tuple[str, ...]] = []
    different, found, held, slower = [0], [races], [1.0], 0
    for name, noise in NOISES.items():
        for kind, sessions in SESSIONS.items():
            equal, faster = (
                [raced(noise, speedup, seed, sessions, races) for seed in range(seeds)] for speedup in (1.0, 1.05)
            )
            counts = [sum(row.verdict != "not resolved" for row in one) for one in equal]
            right = [sum(row.verdict == "faster" for row in one) for one in faster]
            slower += sum(row.verdict == "slower" for one in faster for row in one)
            inside = float(np.mean([row.speedup_low <= 1.05 <= row.speedup_high for one in faster for row in one]))
            different, held = [*different, *counts], [*held, inside]
            found = [*found, *right] if kind == "equal processes" else found
            rows.append((name, kind, spread(counts), spread(right), f"{inside:.0%}"))
    figures = (
        Figure(name="equal models called different", value=max(different), unit=f"of {races} at most",
               goal="at most 5 of 100", met=max(different) <= MOST_DIFFERENT * races),
        Figure(name="5 % found, where all processes of a file are equally fast", value=min(found),
               unit=f"of {races} at least", goal="at least 95 of 100", met=min(found) >= 0.95 * races),
        Figure(name="intervals that hold the speed-up", value=round(100 * min(held)), unit="% at least",
               goal="at least 90 % on every noise", met=min(held) >= LEAST_HELD and not slower),
    )  # fmt: skip
    columns = (
        "noise",
        "processes of one file",
        f"equal, called different, of {races}",
        f"5 % found, of {races}",
        "held",
    )
    claim = "Verdicts are right on simulated machines that drift, jump and stutter"
    return Measured(
        claim, f"{seeds} times {races} races of {FIELD} contenders, {DEFAULT.rounds} rounds", figures, columns, rows
    )


def elimination(races: int) -> Measured:
    """Count what early stopping costs and saves on every noise."""
    rows: list[tuple[str, ...]] = []
    wrong, dropped, slower, most = 0, [0], [0], [0.0]
    for name, noise in NOISES.items():
        others, blocks = many_candidates(noise, races)
        mistakes, (worse, session_blocks) = best_dropped(noise, races), many_sessions(noise, races)
        wrong, dropped, slower, most = (
            wrong + others,
            [*dropped, mistakes],
            [*slower, worse],
            [*most, blocks, session_blocks],
        )
        rows.append((name, f"{blocks:.0%}", str(others), str(mistakes), f"{session_blocks:.0%}", str(worse)))
    figures = (
        Figure(name="races of 24 files with another winner than the whole race", value=wrong, goal="0", met=wrong == 0),
        Figure(name="races of equal files that drop the best", value=max(dropped), unit=f"of {races} at most",
               goal="at most 5 %", met=max(dropped) <= MOST_BEST_DROPPED * races),
        Figure(name="races of sessions whose winner costs over 2 % more", value=max(slower), unit=f"of {races} at most",
               goal="at most 5 %", met=max(slower) <= MOST_WORSE * races),
        Figure(name="largest share of the blocks that is run", value=round(100 * max(most)), unit="%",
               goal="at most 50 %", met=max(most) <= MOST_BLOCKS),
    )  # fmt: skip
    columns = ("noise", "24 files: blocks", f"another winner, of {races}", "equal files: best dropped",
               "16 sessions: blocks", "winner over 2 % worse")  # fmt: skip
    claim = "Early stopping keeps the winner and halves the race, on simulated machines"
    return Measured(claim, f"{races} races for each noise, {ROUNDS} rounds", figures, columns, rows)


def main(words: Sequence[str] | None = None) -> int:
    """Run what is asked for; return 1 when a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one, other = commands.add_parser("verdicts"), commands.add_parser("elimination")
    one.add_argument("--seeds", type=int, default=6)
    one.add_argument("--races", type=int, default=100)
    other.add_argument("--races", type=int, default=60)
    for command in (one, other):
        add_result_option(command)
    asked = parser.parse_args(words)
    found = verdicts(asked.seeds, asked.races) if asked.command == "verdicts" else elimination(asked.races)
    return conclude(found, "measurement", asked.result)


if __name__ == "__main__":
    sys.exit(main())
