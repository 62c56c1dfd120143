"""Whether the race can be believed on this machine: equal models, a known difference, and what measuring costs.

    python benchmarks/measurement.py races [--races 100] [--first 0] [--threads 2] [--notes races.jsonl]
    python benchmarks/measurement.py overhead
    python benchmarks/measurement.py racing MODEL.onnx ... [--batch 1 8] [--pairs 2]

`races` races a model against itself and against one that does 5 % less work, with the benchmark's default rounds in
blocks of 60 ms, and counts the verdicts. It can be done in pieces: each adds its races to the notes and sums all up.
`overhead` times a bare `session.run` loop and the worker's own loop in turns, in one process. `racing` races any models
in several sessions each, with and without early drop. The other models are chains of matrix products whose costs are
proportional to their lengths. Nothing else should run meanwhile.
"""

import argparse
import json
import math
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tasks.benchmark import BenchmarkConfig
from tasks.benchmark.certainty import shift_interval
from tasks.benchmark.contender import Entry, Plan
from tasks.benchmark.race import CONTROL, race
from tasks.benchmark.rows import rows
from tasks.runtime.random_inputs import random_inputs
from tasks.runtime.threads import usable_threads
from tasks.runtime.worker import Worker
from tasks.targets.ort_cpu import OrtCpu

ROWS, SIZE = 512, 64
"""All weights together fit into a core's cache, so that other machines on the same host disturb less."""
LONG, SHORT = 42, 40
BLOCK_MS = 60
SAME, LESS = "the same model", "5 % less work"
DEFAULT = BenchmarkConfig()
SESSIONS = (OrtCpu(), OrtCpu(threads=1), OrtCpu(spinning=False), OrtCpu(arena=False), OrtCpu(level="extended"))


def chain(products: int) -> onnx.ModelProto:
    """Return a model of so many matrix products, with a nonlinearity between."""
    random = np.random.default_rng(0)
    weights = [random.standard_normal((SIZE, SIZE)).astype(np.float32) / SIZE**0.5 for _ in range(products)]
    nodes, name = [], "x"
    for i in range(products):
        nodes.append(helper.make_node("MatMul", [name, f"w{i}"], [f"m{i}"]))
        name = "y" if i == products - 1 else f"r{i}"
        nodes.append(helper.make_node("Relu", [f"m{i}"], [name]))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", ROWS, SIZE]) for n in "xy")
    initializers = [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)]
    graph = helper.make_graph(nodes, "chain", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def verdicts(folder: Path, inputs: Path, seeds: range, threads: int, notes: Path) -> None:
    """Race the long chain against itself and against the short one; add a line a race to the notes."""
    long, short = Entry(folder / "long.onnx"), Entry(folder / "short.onnx")
    entries = {"reference": long, SAME: long, LESS: short}
    for seed in seeds:
        plan = Plan((1,), DEFAULT.rounds, BLOCK_MS, threads, 60, seed, DEFAULT.min_calls)
        start = time.monotonic()
        result = race(entries, inputs, plan)
        note: dict[str, Any] = {"seed": seed, "seconds": time.monotonic() - start}
        note |= {"steal": result.machine.steal_share, "foreign": result.machine.foreign_cores}
        for name in (SAME, LESS):
            base = result.contenders["reference"]
            [row] = rows(result.contenders[name], base, resolution=DEFAULT.resolution)
            note[name] = [row.verdict, row.speedup]
            note["design_effect"] = base.design_effect[1]
        note["medians_ms"] = [c.round_medians_ms[1] for c in result.contenders.values()]
        note["quartiles_ms"] = [c.round_quartiles_ms[1] for c in result.contenders.values()]
        with notes.open("a") as file:
            file.write(json.dumps(note) + "\n")


def tell_verdicts(notes: Path) -> None:
    """Print what was called what, in all races of the notes."""
    found = [json.loads(line) for line in notes.read_text().splitlines()]
    steal, foreign = (statistics.mean(note[key] for note in found) for key in ("steal", "foreign"))
    print(
        f"{len(found)} races of {DEFAULT.rounds} rounds of {BLOCK_MS} ms, "
        f"{sum(note['seconds'] for note in found):.0f} s; steal {100 * steal:.1f} %, other work {foreign:.2f} cores"
    )
    print("| against | faster | not resolved | slower | speed-up: median (5 % to 95 %) |\n|---|---:|---:|---:|---:|")
    for name in (SAME, LESS):
        counted = Counter(note[name][0] for note in found)
        low, middle, high = np.percentile([note[name][1] for note in found], [5, 50, 95])
        told = " | ".join(str(counted[verdict]) for verdict in ("faster", "not resolved", "slower"))
        print(f"| {name} | {told} | {middle:.3f} ({low:.3f} to {high:.3f}) |")


def overhead(folder: Path, inputs: Path, turns: int = 200) -> None:
    """Call one session in a bare loop and in the worker's, in turns; print what a call costs more in processor time."""
    worker = Worker()
    worker.load(str(folder / "long.onnx"), str(inputs), 1)  # other threads would spin, and be counted
    session, feed = worker.engine.session, worker._feed(1)
    names = [output.name for output in session.get_outputs()]
    ratios = []
    for turn in range(turns + 4):
        spent = {}
        for kind in ("bare", "worker") if turn % 2 else ("worker", "bare"):
            start, count = process_time_ns(), 0
            if kind == "worker":
                count = len(worker.engine.measure(feed, DEFAULT.block_ms)[0])
            else:
                end = perf_counter_ns() + DEFAULT.block_ms * 1e6
                while perf_counter_ns() < end:
                    session.run(names, feed)
                    count += 1
            spent[kind] = (process_time_ns() - start) / count
        ratios.append(spent["worker"] / spent["bare"])
    middle, low, high = (100 * (math.exp(value) - 1) for value in shift_interval(np.log(ratios[4:])))
    print(
        f"the worker's loop over a bare one, {turns} turns of {DEFAULT.block_ms:g} ms, processor time of a call: ",
        end="",
    )
    print(f"{middle:+.2f} % [{low:+.2f}, {high:+.2f}]")


def racing(models: list[Path], folder: Path, batches: tuple[int, ...], pairs: int) -> None:
    """Race every model in every session, whole and with early drop in turns; print the winners and the times."""
    inputs = folder / "real.npz"
    np.savez(inputs, **random_inputs(models[0], max(batches), {}, 0))
    entries = {
        f"{model.stem} on {target.name}": Entry(
            model,
            target.command(),
            target.options(),
            target.name,
            usual=None if target is SESSIONS[0] else f"{model.stem} on {SESSIONS[0].name}",
        )
        for target in SESSIONS
        for model in models
    }
    reference = next(iter(entries))
    entries = {reference: entries[reference], CONTROL: entries[reference], **entries}
    shares = []
    for pair in range(pairs):
        seconds = {}
        for early in (False, True) if pair % 2 else (True, False):
            plan = Plan(
                batches,
                DEFAULT.rounds,
                DEFAULT.block_ms,
                usable_threads(),
                60,
                pair,
                DEFAULT.min_calls,
                early_drop=early,
            )
            start = time.monotonic()
            measured = race(entries, inputs, plan, keep=(reference, CONTROL)).contenders
            seconds[early] = time.monotonic() - start
            told = []
            for batch in batches:
                running = {
                    name: rows(c, measured[reference], resolution=0) for name, c in measured.items() if c.runs(batch)
                }
                found = {name: next(row.speedup for row in got if row.batch == batch) for name, got in running.items()}
                best = sorted(found, key=lambda name: -found[name])[:3]
                told.append(f"batch {batch}: " + ", ".join(f"{name} {found[name]:.3f}" for name in best))
            print(f"{'early drop' if early else 'whole':10} {seconds[early]:6.1f} s; {'; '.join(told)}", flush=True)
        shares.append(seconds[True] / seconds[False])
    print(
        f"{len(entries)} contenders; early drop takes {100 * statistics.median(shares):.0f} % of the whole race's time"
    )


def main() -> None:
    """Do what is asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("races", "overhead", "racing"))
    parser.add_argument("models", type=Path, nargs="*", help="of `racing`")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--pairs", type=int, default=2, help="of a whole race and one with early drop")
    parser.add_argument("--races", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="number of the first race, where others were run before")
    parser.add_argument("--threads", type=int, default=usable_threads(), help="of a session in `races`")
    parser.add_argument("--notes", type=Path, default=Path("races.jsonl"), help="a line a race, all summed up")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, inputs = Path(name), Path(name) / "inputs.npz"
        onnx.save(chain(LONG), folder / "long.onnx")
        onnx.save(chain(SHORT), folder / "short.onnx")
        np.savez(inputs, x=np.random.default_rng(0).standard_normal((8, ROWS, SIZE)).astype(np.float32))
        if options.part == "races":
            verdicts(
                folder, inputs, range(options.first, options.first + options.races), options.threads, options.notes
            )
            tell_verdicts(options.notes)
        elif options.part == "overhead":
            overhead(folder, inputs)
        elif options.models:
            racing(options.models, folder, tuple(options.batch), options.pairs)
        else:
            parser.error("racing: name the models")


if __name__ == "__main__":
    main()
