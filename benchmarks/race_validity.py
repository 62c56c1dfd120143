"""Whether the race can be believed on this machine: equal models, a known difference, and what measuring costs.

    python benchmarks/race_validity.py races [--races 100] [--first 0] [--threads 2] [--notes races.jsonl]
    python benchmarks/race_validity.py overhead
    python benchmarks/race_validity.py racing MODEL.onnx ... [--batch 1 8] [--pairs 2]

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
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser
from results import Figure, add_result_option, write_result

from gauntlet.benchmarking.confidence import median_shift_interval
from gauntlet.benchmarking.contender import RaceEntry, RacePlan
from gauntlet.benchmarking.race import CONTROL, race
from gauntlet.benchmarking.rows import rows
from gauntlet.datasets.random_inputs import random_inputs
from gauntlet.runtime.resources import usable_threads
from gauntlet.runtime.worker import Worker
from gauntlet.targets.ort_cpu import OrtCpu
from tasks.benchmark import BenchmarkConfig

ROWS, SIZE = 512, 64
"""All weights together fit into a core's cache, so that other machines on the same host disturb less."""
LONG, SHORT = 42, 40
BLOCK_MS = 60
SAME, LESS = "the same model", "5 % less work"
DEFAULT = BenchmarkConfig()
SESSIONS = (OrtCpu(), OrtCpu(threads=1), OrtCpu(spinning=False), OrtCpu(arena=False), OrtCpu(level="extended"))


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
    long, short = RaceEntry(folder / "long.onnx"), RaceEntry(folder / "short.onnx")
    entries = {"reference": long, SAME: long, LESS: short}
    for seed in seeds:
        plan = RacePlan((1,), DEFAULT.rounds, BLOCK_MS, threads, 60, seed, DEFAULT.min_calls)
        start = time.monotonic()
        result = race(entries, inputs, plan)
        note: dict[str, Any] = {"seed": seed, "seconds": time.monotonic() - start}
        note |= {"steal": result.machine.steal_share, "foreign": result.machine.other_load_cores}
        for name in (SAME, LESS):
            base = result.contenders["reference"]
            [row] = rows(result.contenders[name], base, resolution=DEFAULT.resolution)
            note[name] = [row.verdict, row.speedup]
        note["medians_ms"] = [c.round_medians_ms[1] for c in result.contenders.values()]
        note["quartiles_ms"] = [c.round_quartiles_ms[1] for c in result.contenders.values()]
        with notes.open("a") as file:
            file.write(json.dumps(note) + "\n")


def tell_verdicts(notes: Path) -> dict[str, Any]:
    """Print what was called what, in all races of the notes; return it as a result."""
    found = [json.loads(line) for line in notes.read_text().splitlines()]
    steal, foreign = (statistics.mean(note[key] for note in found) for key in ("steal", "foreign"))
    print(
        f"{len(found)} races of {DEFAULT.rounds} rounds of {BLOCK_MS} ms, "
        f"{sum(note['seconds'] for note in found):.0f} s; steal {100 * steal:.1f} %, other work {foreign:.2f} cores"
    )
    print("| against | faster | not resolved | slower | speed-up: median (5 % to 95 %) |\n|---|---:|---:|---:|---:|")
    counts = {name: Counter(note[name][0] for note in found) for name in (SAME, LESS)}
    for name, counted in counts.items():
        low, middle, high = np.percentile([note[name][1] for note in found], [5, 50, 95])
        told = " | ".join(str(counted[verdict]) for verdict in ("faster", "not resolved", "slower"))
        print(f"| {name} | {told} | {middle:.3f} ({low:.3f} to {high:.3f}) |")
    races, wrong = len(found), counts[SAME]["faster"] + counts[SAME]["slower"]
    right = counts[LESS]["faster"]
    few = {"goal": "at most 5 of 100", "met": wrong <= 0.05 * races}
    most = {"goal": "at least 95 of 100", "met": right >= 0.95 * races}
    return {
        "claim": "Equal models are not called different, and a small difference is found",
        "conditions": f"chains of {LONG} and {SHORT} matrix products, {DEFAULT.rounds} rounds of {BLOCK_MS} ms; "
        f"{foreign:.2f} cores of other work, steal {100 * steal:.1f} %",
        "figures": [
            Figure(name="equal pairs called different", value=wrong, unit=f"of {races}", **few),
            Figure(name=f"{LESS} found", value=right, unit=f"of {races} races", **most),
        ],
    }


def overhead(folder: Path, inputs: Path, turns: int = 200) -> dict[str, Any]:
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
    middle, low, high = (100 * (math.exp(value) - 1) for value in median_shift_interval(np.log(ratios[4:])))
    print(
        f"the worker's loop over a bare one, {turns} turns of {DEFAULT.block_ms:g} ms, processor time of a call: ",
        end="",
    )
    print(f"{middle:+.2f} % [{low:+.2f}, {high:+.2f}]")
    name = "the worker's loop over a bare session.run loop, processor time of a call"
    interval = {"value": round(middle, 2), "low": round(low, 2), "high": round(high, 2), "unit": "%"}
    return {
        "claim": "Measuring costs no time",
        "conditions": f"{turns} turns on one thread",
        "figures": [Figure(name=name, **interval, goal="at most 1 %", met=high <= 1)],
    }


def racing(models: list[Path], folder: Path, batches: tuple[int, ...], pairs: int) -> dict[str, Any]:
    """Race every model in every session, whole and with early drop in turns; print the winners and the times."""
    inputs = folder / "real.npz"
    np.savez(inputs, **random_inputs(models[0], max(batches), {}, 0))
    entries = {
        f"{model.stem} on {target.name}": RaceEntry(
            model,
            target.command(),
            target.options(),
            target.name,
            baseline=None if target is SESSIONS[0] else f"{model.stem} on {SESSIONS[0].name}",
        )
        for target in SESSIONS
        for model in models
    }
    reference = next(iter(entries))
    entries = {reference: entries[reference], CONTROL: entries[reference], **entries}
    shares, lines = [], []
    for pair in range(pairs):
        seconds = {}
        for early in (False, True) if pair % 2 else (True, False):
            plan = RacePlan(
                batches,
                DEFAULT.rounds,
                DEFAULT.block_ms,
                usable_threads(),
                60,
                pair,
                DEFAULT.min_calls,
                early_stopping=early,
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
            kind = "early drop" if early else "whole"
            print(f"{kind:10} {seconds[early]:6.1f} s; {'; '.join(told)}", flush=True)
            lines.append((str(pair + 1), kind, f"{seconds[early]:.1f} s", "; ".join(told)))
        shares.append(seconds[True] / seconds[False])
    share = round(statistics.median(shares), 2)
    print(f"{len(entries)} contenders; early drop takes {100 * share:.0f} % of the whole race's time")
    name = "time of the race with early drop, over the whole race"
    return {
        "claim": "Stopping candidates early halves a race of sessions",
        "conditions": f"{len(models)} files, each in {len(SESSIONS)} sessions; {pairs} pairs, the middle is given",
        "figures": [Figure(name=name, value=share, goal="at most 0.5", met=share <= 0.5)],
        "columns": ("pair", "race", "time", "in front"),
        "rows": lines,
    }


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
    add_result_option(parser)
    options = parser.parse_args()
    if options.part == "racing" and not options.models:
        parser.error("racing: name the models")
    with tempfile.TemporaryDirectory() as name:
        folder, inputs = Path(name), Path(name) / "inputs.npz"
        onnx.save(chain(LONG), folder / "long.onnx")
        onnx.save(chain(SHORT), folder / "short.onnx")
        np.savez(inputs, x=np.random.default_rng(0).standard_normal((8, ROWS, SIZE)).astype(np.float32))
        if options.part == "races":
            verdicts(
                folder, inputs, range(options.first, options.first + options.races), options.threads, options.notes
            )
            found = tell_verdicts(options.notes)
        elif options.part == "overhead":
            found = overhead(folder, inputs)
        else:
            found = racing(options.models, folder, tuple(options.batch), options.pairs)
    if options.result:
        write_result(options.result, topic="measurement", **found)


if __name__ == "__main__":
    main()
