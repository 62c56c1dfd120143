"""Whether the race can be believed on this machine: equal models and a known difference.

    python benchmarks/race_validity.py [--races 100] [--first 0] [--threads 2] [--notes races.jsonl]

A model is raced against itself and against one that does 5 % less work, with the benchmark's default rounds in blocks
of 60 ms, and the verdicts are counted. It can be done in pieces: each adds its races to the notes and sums all up. The
models are chains of matrix products whose costs are proportional to their lengths. Nothing else should run meanwhile.
"""

import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser
from results import Figure, Measured, conclude, script_parser

from gauntlet.race.contender import Entry, Plan
from gauntlet.race.rows import rows
from gauntlet.race.table import run_race
from gauntlet.runtime.resources import usable_threads
from tasks.benchmark import BenchmarkConfig

ROWS, SIZE = 512, 64
"""All weights together fit into a core's cache, so that other machines on the same host disturb less."""
LONG, SHORT = 42, 40
BLOCK_MS = 60
SAME, LESS = "the same model", "5 % less work"
DEFAULT = BenchmarkConfig()


def chain(products: int) -> onnx.ModelProto:
    """Return a model of so many matrix products, with a nonlinearity between."""
    names = ["x", *(f"r{i}" for i in range(products - 1)), "y"]
    layers = [f"m{i} = MatMul({a}, w{i}) {b} = Relu(m{i})" for i, (a, b) in enumerate(pairwise(names))]
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]>
        chain (float[batch,{ROWS},{SIZE}] x) => (float[batch,{ROWS},{SIZE}] y)
        {{ {" ".join(layers)} }}
    """)
    random = np.random.default_rng(0)
    weights = [random.standard_normal((SIZE, SIZE)).astype(np.float32) / SIZE**0.5 for _ in range(products)]
    model.graph.initializer.extend(numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights))
    return model


def verdicts(folder: Path, inputs: Path, seeds: range, threads: int, notes: Path) -> None:
    """Race the long chain against itself and against the short one; add a line a race to the notes."""
    long, short = Entry(folder / "long.onnx"), Entry(folder / "short.onnx")
    entries = {"reference": long, SAME: long, LESS: short}
    for seed in seeds:
        plan = Plan((1,), DEFAULT.rounds, BLOCK_MS, threads, 60, seed, DEFAULT.min_calls)
        start = time.monotonic()
        result = run_race(entries, plan, "reference", inputs=inputs, control=False)
        note: dict[str, Any] = {"seed": seed, "seconds": time.monotonic() - start}
        note |= {"steal": result.machine.steal_share, "foreign": result.machine.other_load_cores}
        for name in (SAME, LESS):
            base = result.contenders["reference"]
            [row] = rows(result.contenders[name], base, resolution=DEFAULT.resolution)
            note[name] = [row.verdict, row.speedup]
        with notes.open("a") as file:
            file.write(json.dumps(note) + "\n")


def summary(notes: Path) -> Measured:
    """Return what was called what, in all races of the notes."""
    entries = [json.loads(line) for line in notes.read_text().splitlines()]
    steal, foreign = (statistics.mean(note[key] for note in entries) for key in ("steal", "foreign"))
    counts, rows = {name: Counter(note[name][0] for note in entries) for name in (SAME, LESS)}, []
    for name, counted in counts.items():
        low, middle, high = np.percentile([note[name][1] for note in entries], [5, 50, 95])
        verdicts = [str(counted[verdict]) for verdict in ("faster", "not resolved", "slower")]
        rows.append((name, *verdicts, f"{middle:.3f} ({low:.3f} to {high:.3f})"))
    races, wrong = len(entries), counts[SAME]["faster"] + counts[SAME]["slower"]
    right = counts[LESS]["faster"]
    return Measured(
        "Equal models are not called different, and most small differences are found",
        f"chains of {LONG} and {SHORT} matrix products, {DEFAULT.rounds} rounds of {BLOCK_MS} ms; "
        f"{foreign:.2f} cores of other work, steal {100 * steal:.1f} %",
        (
            Figure.at_most("equal pairs called different", wrong, 0.05 * races, f"of {races}"),
            Figure.at_least(f"{LESS} found", right, 0.95 * races, f"of {races} races"),
        ),
        ("against", "faster", "not resolved", "slower", "speed-up: median (5 % to 95 %)"),
        rows,
    )


def main() -> int:
    """Race, and sum up; return 1 when a goal is missed."""
    parser = script_parser(__doc__)
    parser.add_argument("--races", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="number of the first race, where others were run before")
    parser.add_argument("--threads", type=int, default=usable_threads(), help="of a session")
    parser.add_argument("--notes", type=Path, default=Path("races.jsonl"), help="a line a race, all summed up")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, inputs = Path(name), Path(name) / "inputs.npz"
        onnx.save(chain(LONG), folder / "long.onnx")
        onnx.save(chain(SHORT), folder / "short.onnx")
        np.savez(inputs, x=np.random.default_rng(0).standard_normal((8, ROWS, SIZE)).astype(np.float32))
        seeds = range(options.first, options.first + options.races)
        verdicts(folder, inputs, seeds, options.threads, options.notes)
    return conclude(summary(options.notes), "measurement", options.result)


if __name__ == "__main__":
    sys.exit(main())
