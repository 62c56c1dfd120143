"""What the intervals and the choice of a winner promise, when processes of one file differ.

    python benchmarks/coverage.py [--races 2000] [--seed 0] [--json]

The first table has the coverage of the 95 % interval when a share of the variance of a round lies between processes.
The second one counts the races of candidates exactly at the margin in which one is chosen, by the first race alone and
after its confirmation. Noise is normal; a round varies by 3 %. `race_simulation.py` has other noises.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from race_simulation import contender

from gauntlet.benchmarking.rows import rows
from gauntlet.core.run_report import BenchmarkRow

SHARES = (0.0, 0.25, 0.5, 0.8, 0.95)
ROUNDS = (8, 10, 16, 24)
CANDIDATES = (1, 5, 10, 20)
DEVIATION = 0.03 / math.sqrt(2)
"""Standard deviation of a contender's time in one round, relative: that of a ratio is 3 %."""
MARGIN = 1.05
REFERENCE_MS = 10.0

Times = npt.NDArray[np.float64]


def times(random: np.random.Generator, count: int, rounds: int, share: float) -> Times:
    """Return relative times, shape (count, rounds): each round has a new process, which is fast or slow by itself."""
    processes = math.sqrt(share) * random.standard_normal((count, rounds))
    within = math.sqrt(1 - share) * random.standard_normal((count, rounds))
    return np.exp(DEVIATION * (processes + within))


def rows_of(random: np.random.Generator, speedups: Sequence[float], rounds: int, share: float) -> list[BenchmarkRow]:
    """Race candidates with these speed-ups against a reference; return a row each."""
    measured = REFERENCE_MS * times(random, 1 + len(speedups), rounds, share)
    base = contender("fp32", measured[0])
    candidates = [contender(f"c{i}", measured[1 + i] / speedup) for i, speedup in enumerate(speedups)]
    return [row for one in candidates for row in rows(one, base, resolution=0)]


def coverage(races: int, rounds: int, candidates: int, share: float, seed: int) -> float:
    """Return the share of intervals that hold the true speed-up, 1; with many candidates, of fewer races."""
    random = np.random.default_rng([seed, rounds, candidates, round(100 * share)])
    found = [
        row for _ in range(races // min(candidates, 4)) for row in rows_of(random, [1.0] * candidates, rounds, share)
    ]
    return float(np.mean([row.speedup_low <= 1 <= row.speedup_high for row in found]))


def family(races: int, candidates: int, rounds: int, share: float, seed: int) -> tuple[float, float, float]:
    """Race candidates exactly at the margin.

    Returns:
        The share of races in which one is proven faster than the margin, the share in which the fastest of these is
        confirmed by a race of its own, and the mean relative error of the second race's estimate.
    """
    random = np.random.default_rng([seed, candidates, rounds])
    first = second = 0
    errors = []
    for _ in range(races):
        proven = [row for row in rows_of(random, [MARGIN] * candidates, rounds, share) if row.speedup_low > MARGIN]
        if proven:
            [again] = rows_of(random, [MARGIN], rounds, share)
            first, second = first + 1, second + (again.speedup_low > MARGIN)
            errors.append(again.speedup / MARGIN - 1)
    return first / races, second / races, float(np.mean(errors)) if errors else 0.0


def main(words: Sequence[str] | None = None) -> int:
    """Print both tables; return 1 when a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--races", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(words)
    covered = [
        {"rounds": rounds, "candidates": count, "share": share,
         "coverage": coverage(asked.races, rounds, count, share, asked.seed)}
        for rounds in ROUNDS for count in (1, 20) for share in SHARES
    ]  # fmt: skip
    wrong = []
    for count in CANDIDATES:
        first, second, error = family(asked.races, count, 16, 0.5, asked.seed)
        wrong.append({"candidates": count, "false_in_first_race": first, "false": second, "bias": error})
    if asked.json:
        print(json.dumps({"coverage": covered, "family_wise": wrong}))
    else:
        print("| rounds | candidates | " + " | ".join(f"{share:.0%}" for share in SHARES) + " |")
        print("|---:|---:|" + "---:|" * len(SHARES))
        for start in range(0, len(covered), len(SHARES)):
            line = covered[start : start + len(SHARES)]
            cells = " | ".join(f"{one['coverage']:.1%}" for one in line)
            print(f"| {line[0]['rounds']} | {line[0]['candidates']} | {cells} |")
        print("\n| candidates at the margin | first race | confirmed | bias of the estimate |\n|---:|---:|---:|---:|")
        for one in wrong:
            print(
                f"| {one['candidates']} | {one['false_in_first_race']:.1%} | {one['false']:.1%} | {one['bias']:+.2%} |"
            )
    held = min(one["coverage"] for one in covered) >= 0.94 and max(one["false"] for one in wrong) <= 0.05
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
