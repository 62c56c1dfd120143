"""Whether others measure the same: ONNX Runtime's and OpenVINO's own benchmarks, and MLPerf's LoadGen.

    python benchmarks/external_benchmarks.py MODEL.onnx [--turns 8] [--only onnxruntime] [--openvino FOLDER]

Each measures the model in turns with ours, and the ratio of what they say is printed with its 95 % interval. The wheel
of ONNX Runtime has no `onnxruntime_perf_test`, so its part is `inference_ort` of `onnxruntime.transformers`, which
needs the package transformers; OpenVINO's is `benchmark_app`, of the environment in FOLDER. Nothing else may run.
"""

import argparse
import math
import re
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from results import Figure, add_result_option, write_result

from gauntlet.benchmarking.confidence import median_shift_interval
from gauntlet.benchmarking.contender import RaceEntry
from gauntlet.datasets.random_inputs import random_inputs
from gauntlet.runtime.resources import usable_threads
from gauntlet.runtime.subprocess_runner import run_in_subprocess
from gauntlet.runtime.worker import Worker
from gauntlet.runtime.worker_client import WorkerClient
from gauntlet.targets.openvino import OpenVino
from gauntlet.targets.ort_cpu import OrtCpu
from tasks.loadgen.driver import LoadGenJob, Scenario, run_scenario
from tasks.loadgen.logs import figures

SECONDS = 2.0
BATCH = 8
THREADS = usable_threads()
WITHIN = {"LoadGen": 0.05, "OpenVINO": 0.02}
"""How far from ours each may be, by the beginning of its name."""
Turn = Callable[[int], float]


def onnxruntime(model: Path, inputs: Path) -> dict[str, Turn]:
    """Return its helper's mean latency over ours, on the same session of this process."""
    from onnxruntime.transformers.benchmark_helper import inference_ort

    worker = Worker()
    worker.load(str(model), str(inputs), THREADS)
    session, feed = worker.engine.session, worker._feed(1)

    def turn(number: int) -> float:
        calls = max(10, round(SECONDS * 1000 / statistics.median(worker.run(1, 300)["samples_ms"])))
        told = {}
        for who in ("ours", "theirs") if number % 2 else ("theirs", "ours"):
            if who == "ours":
                told[who] = statistics.fmean(worker.run(1, SECONDS * 1000)["samples_ms"])
            else:
                told[who] = 1000 / float(inference_ort(session, feed, {}, calls, 1)["QPS"])
        return told["theirs"] / told["ours"]

    return {"onnxruntime's inference_ort, means": turn}


def openvino(model: Path, inputs: Path, environment: Path) -> dict[str, Turn]:
    """Return benchmark_app's median over the one of our target, each in a process of its own.

    OpenVINO is faster with shapes that are fixed, so both get the model with a batch of 1 that is written into it.
    """
    model = of_one(model, inputs.with_name("one.onnx"))
    target = OpenVino(precision="f32", env=str(environment))
    app = [environment / "bin" / "benchmark_app", "-m", model, "-d", "CPU", "-api", "sync", "-hint", "none"]
    app += ["-nstreams", "1", "-nthreads", str(THREADS), "-infer_precision", "f32"]
    app += ["-t", str(round(SECONDS))]

    def turn(number: int) -> float:
        told = {}
        for who in ("ours", "theirs") if number % 2 else ("theirs", "ours"):
            if who == "ours":
                told[who] = statistics.median(calls_ms(RaceEntry(model, target.command(), target.options()), inputs, 1))
            else:
                said = subprocess.run(app, capture_output=True, text=True, check=True).stdout
                told[who] = float(re.search(r"Median:\s+([\d.]+) ms", said)[1])
        return told["theirs"] / told["ours"]

    return {"OpenVINO's benchmark_app, medians": turn}


def loadgen(model: Path, inputs: Path) -> dict[str, Turn]:
    """Return LoadGen's time of a call over ours: SingleStream's median, and what Offline takes for a full batch.

    Offline's throughput is all samples over all the time, so it is a mean, and ours is one too.
    """

    def turn(number: int, scenario: str, batch: int) -> float:
        told = {}
        for who in ("ours", "theirs") if number % 2 else ("theirs", "ours"):
            if who == "ours":
                middle = statistics.median if scenario == "SingleStream" else statistics.fmean
                told[who] = middle(calls_ms(RaceEntry(model), inputs, batch))
                continue
            asked = Scenario(scenario=scenario, min_duration_s=SECONDS, min_queries=100, batch=batch)
            order = LoadGenJob(asked, THREADS, OrtCpu().options())
            with tempfile.TemporaryDirectory() as logs:
                run_in_subprocess(run_scenario, order, model, inputs, Path(logs), timeout_s=60, memory_bytes=8 * 10**9)
                said = figures(Path(logs))
            if scenario == "SingleStream":
                told[who] = float(str(said["result_50.00_percentile_latency_ns"])) / 1e6
            else:
                told[who] = 1000 * batch / float(str(said["result_samples_per_second"]))
        return told["theirs"] / told["ours"]

    return {
        "LoadGen SingleStream, median of a call": lambda number: turn(number, "SingleStream", 1),
        f"LoadGen Offline, time of {BATCH} samples, means": lambda number: turn(number, "Offline", BATCH),
    }


def of_one(model: Path, path: Path) -> Path:
    """Write the model with a batch of 1."""
    proto = onnx.load(model)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(proto, path)
    return path


def calls_ms(entry: RaceEntry, inputs: Path, batch: int) -> list[float]:
    """Return the times of calls, as the race's worker measures them."""
    with WorkerClient(entry.command) as worker:
        worker.load(entry.model, inputs, THREADS, 60, entry.options)
        worker.run(batch, 300, 60)
        return list(worker.run(batch, SECONDS * 1000, 60)["samples_ms"])


def main() -> None:
    """Do what is asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--only", choices=("onnxruntime", "openvino", "loadgen"))
    parser.add_argument("--openvino", type=Path, metavar="FOLDER")
    add_result_option(parser)
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.npz"
        np.savez(inputs, **random_inputs(options.model, 64, {}, 0))
        parts: dict[str, Turn] = {}
        if options.only in (None, "onnxruntime"):
            parts |= onnxruntime(options.model, inputs)
        if options.only in (None, "openvino") and options.openvino:
            parts |= openvino(options.model, inputs, options.openvino.resolve())
        if options.only in (None, "loadgen"):
            parts |= loadgen(options.model, inputs)
        for name, turn in parts.items():
            ratios = [turn(number) for number in range(options.turns)]
            middle, low, high = map(math.exp, median_shift_interval(np.log(ratios)))
            print(f"{name}, over ours: {middle:.3f} [{low:.3f}, {high:.3f}], {options.turns} turns", flush=True)
            found.append(figure(f"{name}, over ours", middle, low, high))
    if options.result:
        write_result(
            options.result,
            topic="measurement",
            claim="Other benchmarks measure the same latency",
            conditions=f"{options.model.name}, {THREADS} threads, {options.turns} turns of {SECONDS:g} s",
            figures=found,
        )


def figure(name: str, middle: float, low: float, high: float) -> Figure:
    """Return a ratio with its goal, where it has one."""
    limit = next((limit for start, limit in WITHIN.items() if name.startswith(start)), None)
    goal = {"goal": f"within {100 * limit:g} %", "met": abs(middle - 1) <= limit} if limit else {}
    return Figure(name=name, value=round(middle, 3), low=round(low, 3), high=round(high, 3), **goal)


if __name__ == "__main__":
    main()
