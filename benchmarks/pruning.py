"""What pruning adds to INT8: the candidates of one run of the preset, raced against its unpruned INT8 model.

    python benchmarks/pruning.py [--home FOLDER] [--rounds 24]

Runs `gauntlet run digits-resnet18-pruned` (in FOLDER, where a second call finds the models again), then one interleaved
race. Prints the table, and whether the goal is met by one candidate: at least 3x at batch 1 and 4x at batch 8, for at
most half a point of the FP32 model's accuracy.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from flows.home import Home
from flows.locks import HOST_LOCK, locked
from tasks.benchmark.race import Entry, Plan, race
from tasks.benchmark.rows import rows
from tasks.data.golden import Golden
from tasks.run_report import BenchmarkRow, CandidateEntry, RunReport
from tasks.runtime.threads import usable_threads

PRESET = "digits-resnet18-pruned"
GAUNTLET = Path(sys.executable).with_name("gauntlet")
REFERENCE, CONTROL = "static-u8s8", "static-u8s8 again"
GOAL, MAX_LOSS = {1: 3.0, 8: 4.0}, 0.005


def run_preset(home: Home) -> RunReport:
    """Run the preset in a home and return its report."""
    done = subprocess.run([GAUNTLET, "run", PRESET], env={**os.environ, "GAUNTLET_HOME": str(home.root)}, check=False)
    folder = home.finished_run()
    if done.returncode != 0 or folder is None:
        raise SystemExit(f"the run ended with {done.returncode}")
    return RunReport.model_validate_json((folder / "report.json").read_bytes())


def work_left(report: RunReport, candidate: CandidateEntry) -> float:
    """Return the share of the multiply-accumulate operations that a candidate's network has left."""
    entry = next(
        (e for name in (candidate.name, candidate.parent) if name and (e := report.stage("prune", name))), None
    )
    return float(str(entry.facts["macs_share"])) if entry else 1.0


def main() -> None:
    """Run, race, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--rounds", type=int, default=24)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Home((options.home or Path(folder)).resolve())
        report = run_preset(home)
        train = report.stage("train")
        assert train is not None
        golden = Golden.load(home.store.path(train.artifacts["golden"]))
        inputs = Path(folder) / "inputs.npz"
        np.savez(inputs, **{name: array[: max(GOAL)] for name, array in golden.real.inputs.items()})
        entries = {c.name: Entry(home.store.path(c.artifact)) for c in report.candidates if c.artifact}
        entries[CONTROL] = entries[REFERENCE]
        plan = Plan(tuple(GOAL), options.rounds, block_ms=60, threads=usable_threads(), timeout_s=120)
        with locked(HOST_LOCK, shared=False):
            contenders = race(entries, inputs, plan).contenders
    speed = {name: rows(c, contenders[REFERENCE], resolution=0.01) for name, c in contenders.items()}
    print_table(report, speed)


def print_table(report: RunReport, speed: dict[str, tuple[BenchmarkRow, ...]]) -> None:
    """Print a line a candidate, and whether one of them meets the goal."""
    candidates = {c.name: c for c in report.candidates}
    base, met = candidates["fp32"].accuracy or 0.0, []
    print(f"| candidate | MACs left | accuracy | size, MB | {' | '.join(f'batch {b}, x {REFERENCE}' for b in GOAL)} |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, found in speed.items():
        candidate = candidates.get(name, candidates[REFERENCE])
        accuracy, size = candidate.accuracy or 0.0, (candidate.size_bytes or 0) / 1e6
        times = " | ".join(f"{r.speedup:.2f} [{r.speedup_low:.2f}, {r.speedup_high:.2f}]" for r in found)
        print(
            f"| {name} | {100 * work_left(report, candidate):.1f} % | {100 * accuracy:.2f} % | {size:.1f} | {times} |"
        )
        if base - accuracy <= MAX_LOSS and all(row.speedup_low >= GOAL[row.batch] for row in found):
            met.append(name)
    print(f"\ngoal (3x, 4x, at most 0.5 points below {100 * base:.2f} %): {', '.join(met) or 'missed'}")


if __name__ == "__main__":
    main()
