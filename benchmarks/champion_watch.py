"""How often the watch over a promotion rolls an equal champion back, and how many labels prove a worse one.

    python benchmarks/champion_watch.py [--streams 1000] [--labels 5000]

The champion before errs on 4 % of the samples. A champion errs on most of the same samples and on some others: an equal
one on as many, a worse one on some points more. Both are looked at after every label. Prints a table and exits with 1
when a goal is missed.
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np
from results import Figure, Measured, add_result_option, conclude

from gauntlet.monitoring.martingale import Floats
from gauntlet.monitoring.predecessor import DEFAULT_DROP, paired_wealth
from gauntlet.monitoring.result import MonitorLimits

LEVEL = MonitorLimits().false_alarms / 2
"""The share of the false alarms that predictions have."""
RISK, SHARED = 0.04, 0.5
"""Of the champion before; the share of its errors that its successor makes, too."""
DROPS = (0.02, 0.05, 0.1, 0.2)
MOST_FALSE = 0.05


def losses(seed: int, worse_by: float, count: int) -> tuple[Floats, Floats]:
    """Return the losses of a champion and of the one before on the same samples."""
    random = np.random.default_rng(seed)
    before = random.random(count) < RISK
    own = (RISK * (1 - SHARED) + worse_by) / (1 - RISK)
    after = np.where(before, random.random(count) < SHARED, random.random(count) < own)
    return after.astype(np.float64), before.astype(np.float64)


def proofs(worse_by: float, drop: float, streams: int, count: int) -> list[int | None]:
    """Return the label that proves harm in each stream; None where none does."""
    return [paired_wealth(*losses(seed, worse_by, count), drop).first_above(LEVEL) for seed in range(streams)]


def measure(streams: int, count: int) -> Measured:
    """Count false rollbacks and the labels that harm takes, with nothing to lose and with a point."""
    rows, false = list[tuple[str, ...]](), list[int]()
    found = {}
    for drop in (0.0, DEFAULT_DROP):
        equal = sum(one is not None for one in proofs(drop, drop, streams, count))
        false.append(equal)
        rows.append((f"{drop:.0%}", f"{100 * drop:g}", f"{equal} of {streams}", ""))
        for worse_by in DROPS:
            few = proofs(worse_by, drop, streams // 10, count)
            proven = [one + 1 for one in few if one is not None]
            found[drop, worse_by] = float(np.median([count if one is None else one + 1 for one in few]))
            median = f"{found[drop, worse_by]:.0f}" if len(proven) > len(few) / 2 else f"more than {count}"
            rows.append((f"{drop:.0%}", f"{100 * worse_by:g}", f"{len(proven)} of {len(few)}", median))
    figures = (
        Figure(name="champions at their limit that are ever rolled back", value=max(false), unit=f"of {streams}",
               goal=f"fewer than {MOST_FALSE * streams:g}", met=max(false) < MOST_FALSE * streams),
        *(Figure(name=f"labels that prove a champion {100 * worse_by:g} points worse, with 1 % to lose, median",
                 value=found[DEFAULT_DROP, worse_by]) for worse_by in DROPS[1:]),
    )  # fmt: skip
    return Measured(
        "A promoted champion that keeps its limit is seldom rolled back, and a worse one soon is",
        f"streams of {count} labels, looked at after each; the champion before errs on {RISK:.0%} of the samples, the "
        "other one on half of these and on some of the rest",
        figures,
        ("may lose", "worse by, points", "rolled back", "labels, median"),
        rows,
    )


def main(words: Sequence[str] | None = None) -> int:
    """Run the simulation; return 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--labels", type=int, default=5000)
    add_result_option(parser)
    asked = parser.parse_args(words)
    found = measure(asked.streams, asked.labels)
    return conclude(found, "monitoring", asked.result)


if __name__ == "__main__":
    sys.exit(main())
