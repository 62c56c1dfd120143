"""Whether the race can be believed on this machine: equal models, a known difference, and what measuring costs.

    python benchmarks/measurement.py [--races 100] [--loadgen]

Races a model against itself and against one that does 5 % less work, as often as asked, with the default settings of
the benchmark; counts the verdicts; then times a bare `session.run` loop and the worker's own loop in turns, in one
process; with `--loadgen` also compares MLPerf LoadGen's SingleStream and Offline with the race's medians. Nothing else
should run meanwhile. The models are chains of matrix products whose costs are proportional to their lengths.
"""

import argparse
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from time import perf_counter_ns

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tasks.benchmark import BenchmarkConfig
from tasks.benchmark.race import Entry, Plan, race
from tasks.benchmark.rows import rows
from tasks.loadgen.driver import Order, drive
from tasks.loadgen.logs import figures
from tasks.runtime.sandbox import run_apart
from tasks.runtime.threads import usable_threads
from tasks.runtime.worker import Worker

SIZE = 256
LONG, SHORT = 42, 40
DEFAULT = BenchmarkConfig()


def chain(products: int) -> onnx.ModelProto:
    """Return a model of so many matrix products of one vector a sample, with a nonlinearity between."""
    random = np.random.default_rng(0)
    weights = [random.standard_normal((SIZE, SIZE)).astype(np.float32) / 16 for _ in range(products)]
    nodes, name = [], "x"
    for i in range(products):
        nodes.append(helper.make_node("MatMul", [name, f"w{i}"], [f"m{i}"]))
        name = "y" if i == products - 1 else f"r{i}"
        nodes.append(helper.make_node("Relu", [f"m{i}"], [name]))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 16, SIZE]) for n in "xy")
    initializers = [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)]
    graph = helper.make_graph(nodes, "chain", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def verdicts(folder: Path, inputs: Path, races: int) -> None:
    """Race the long chain against itself and against the short one; print what was called what."""
    found: dict[str, Counter[str]] = {"the same model": Counter(), "5 % less work": Counter()}
    speedups: dict[str, list[float]] = {name: [] for name in found}
    long, short = Entry(folder / "long.onnx"), Entry(folder / "short.onnx")
    entries = {"reference": long, "the same model": long, "5 % less work": short}
    start, steal, foreign = time.monotonic(), [], []
    for number in range(races):
        plan = Plan((1,), DEFAULT.rounds, DEFAULT.block_ms, usable_threads(), 60, seed=number)
        result = race(entries, inputs, plan)
        base = result.contenders["reference"]
        for name in found:
            [row] = rows(result.contenders[name], base, resolution=DEFAULT.resolution)
            found[name][row.verdict] += 1
            speedups[name].append(row.speedup)
        steal.append(result.machine.steal_share)
        foreign.append(result.machine.foreign_cores)
    print(
        f"{races} races of {DEFAULT.rounds} rounds of {DEFAULT.block_ms:g} ms, {time.monotonic() - start:.0f} s; ",
        end="",
    )
    print(f"steal {100 * statistics.mean(steal):.1f} %, other work {statistics.mean(foreign):.2f} cores")
    print("| against | faster | not resolved | slower | speed-up: median (5 % to 95 %) |\n|---|---:|---:|---:|---:|")
    for name, counted in found.items():
        low, middle, high = np.percentile(speedups[name], [5, 50, 95])
        told = " | ".join(str(counted[verdict]) for verdict in ("faster", "not resolved", "slower"))
        print(f"| {name} | {told} | {middle:.3f} ({low:.3f} to {high:.3f}) |")


def overhead(folder: Path, inputs: Path, rounds: int = 40, block_ms: float = 100) -> None:
    """Time a bare loop and the worker's in turns, on one session, and print how much slower the worker's calls are."""
    worker = Worker()
    worker.load(str(folder / "long.onnx"), str(inputs), 1)
    session, feed = worker.engine.session, worker._feed(1)
    names = [output.name for output in session.get_outputs()]
    ratios = []
    for turn in range(rounds + 2):
        taken = {}
        for kind in ("bare", "worker") if turn % 2 else ("worker", "bare"):
            start, count = perf_counter_ns(), 0
            if kind == "worker":
                count = len(worker.run(1, block_ms)["samples_ms"])
            else:
                end = start + block_ms * 1e6
                while perf_counter_ns() < end:
                    session.run(names, feed)
                    count += 1
            taken[kind] = (perf_counter_ns() - start) / count
        ratios.append(taken["worker"] / taken["bare"])
    cost = 100 * (statistics.median(ratios[2:]) - 1)
    print(f"\nharness over a bare loop, whole blocks, {rounds} turns: {cost:+.2f} % a call")


def loadgen(folder: Path, inputs: Path, turns: int = 5) -> None:
    """Let LoadGen and the race measure the same model in turns; print the ratios of what they say."""
    model, threads = folder / "long.onnx", usable_threads()
    told: dict[str, list[float]] = {"SingleStream": [], "Offline": []}
    for turn in range(turns):
        plan = Plan((1, 8), 8, 100, threads, 60, seed=turn)
        ours = race({"model": Entry(model)}, inputs, plan).contenders["model"].round_medians_ms
        for scenario, values in told.items():
            logs = folder / f"{scenario}-{turn}"
            logs.mkdir()
            order = Order(scenario, False, 1500, 100, 8, 100, None, None, threads)
            run_apart(drive, order, model, inputs, logs, timeout_s=60, memory_bytes=8 * 10**9)
            said = figures(logs)
            if scenario == "SingleStream":
                median_ms = float(str(said["result_50.00_percentile_latency_ns"])) / 1e6
                values.append(median_ms / statistics.median(ours[1]))
            else:
                values.append(8000 / float(str(said["result_samples_per_second"])) / statistics.median(ours[8]))
    for scenario, values in told.items():
        spread = ", ".join(f"{value:.3f}" for value in values)
        print(f"LoadGen {scenario} over the race's median: {statistics.median(values):.3f} (turns: {spread})")


def main() -> None:
    """Do all of it and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--races", type=int, default=100)
    parser.add_argument("--loadgen", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, inputs = Path(name), Path(name) / "inputs.npz"
        onnx.save(chain(LONG), folder / "long.onnx")
        onnx.save(chain(SHORT), folder / "short.onnx")
        np.savez(inputs, x=np.random.default_rng(0).standard_normal((64, 16, SIZE)).astype(np.float32))
        if options.races:
            verdicts(folder, inputs, options.races)
        overhead(folder, inputs)
        if options.loadgen:
            loadgen(folder, inputs)


if __name__ == "__main__":
    main()
