"""How much faster twelve candidates of equal cost are made by two workers than one after the other.

    python benchmarks/side_by_side.py [--seconds 5] [--pairs 1] [--kinds processes,threads]

Each candidate is a graph pass in Python that computes for a fixed number of steps on one core, and returns the model;
its gates follow. What is timed is everything between the main line and the race, the start of the workers included:
the runs take turns, from copies of one home in which the main line is done. The digests of all runs must agree.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import Figure, Measured, add_result_option, conclude

GAUNTLET = Path(sys.executable).with_name("gauntlet")
CANDIDATES, WORKERS, GOAL = 12, 2, 1.8
GOVERNED = "processes"
"""The kind of workers that the goal is about."""
QUICK = ("benchmark.batch_sizes=[1]", "benchmark.rounds=6", "benchmark.block_ms=2", "benchmark.restart_processes=false")
QUICK += ("train.epochs=6", "quantize=[]", "numerics.samples=8", "benchmark.early_stopping=true")
PASS = """

def spend_{number:02}(model):
    spend({steps})
    name = model.graph.output[0].name  # a new node: otherwise the runtime makes the same graph, and no gate follows
    for node in model.graph.node:
        node.output[:] = ["before" if output == name else output for output in node.output]
    model.graph.initializer.append(numpy_helper.from_array(np.float32([-1e30]), "least"))
    model.graph.node.add(op_type="Max", name="max", input=["before", "least"], output=[name])
    return model
"""
SPEND = """
import numpy as np
from onnx import numpy_helper


def spend(steps):
    value = 1
    for _ in range(steps):
        value = value * 1103515245 + 12345 & 0x7FFFFFFF
"""


def steps_in(seconds: float) -> int:
    """Return how many steps take so long here, alone."""
    names: dict[str, Any] = {}
    exec(SPEND, names)
    start = time.perf_counter()
    names["spend"](1_000_000)
    return int(seconds / (time.perf_counter() - start) * 1_000_000)


def run(home: Path, folder: Path, runner: str) -> dict[str, Any]:
    """Run the pipeline in a copy of a home; return the seconds of the candidates, and the digests."""
    passes = ", ".join(
        f"{{kind: python, function: spenders:spend_{number:02}, code_folder: {folder}}}" for number in range(CANDIDATES)
    )
    settings = (*QUICK, f"optimize=[{passes}]", f"runner={runner}")
    words = [word for setting in settings for word in ("--set", setting)]
    with tempfile.TemporaryDirectory(dir=folder) as copied:
        root = Path(copied) / "home"
        shutil.copytree(home, root)
        environment = {**os.environ, "GAUNTLET_HOME": str(root)}
        command = [GAUNTLET, "run", "digits-small-cnn", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        last = max(root.glob("runs/*/journal.jsonl"))
        events = [json.loads(line) for line in last.read_text().splitlines()]
        report = json.loads(last.with_name("report.json").read_text())
    works = [event for event in events if event["op"] in ("work_started", "work_finished")]
    before = max(e["time_ms"] for e in itertools.takewhile(lambda e: e["candidate"] is None, works))
    after = next(e["time_ms"] for e in works if e["stage"] == "benchmark")
    made = [c for c in report["candidates"] if c["name"].startswith("spend") and c["artifact"]]
    if len(made) != CANDIDATES:
        raise SystemExit(f"{len(made)} of {CANDIDATES} candidates were made: {report['candidates']}")
    digests = [(entry["stage"], entry["candidate"], entry["artifacts"]) for entry in report["stages"]]
    return {"seconds": (after - before) / 1000, "digests": [d for d in digests if d[1]], "load": os.getloadavg()[0]}


def main() -> int:
    """Measure in turns; return 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one candidate's pass")
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--kinds", default=f"{GOVERNED},threads", help=f"of workers; {GOVERNED} must be among them")
    add_result_option(parser)
    options = parser.parse_args()
    runners = {"one after the other": "{kind: threads, workers: 1}"}
    runners |= {kind: f"{{kind: {kind}, workers: {WORKERS}}}" for kind in options.kinds.split(",")}
    with tempfile.TemporaryDirectory() as text:
        folder, steps = Path(text), steps_in(options.seconds)
        passes = (PASS.format(number=number, steps=steps) for number in range(CANDIDATES))
        (folder / "spenders.py").write_text(SPEND + "".join(passes))
        words = [word for setting in (*QUICK, "optimize=[]") for word in ("--set", setting)]
        environment = {**os.environ, "GAUNTLET_HOME": str(folder / "home")}
        subprocess.run([GAUNTLET, "run", "digits-small-cnn", *words], env=environment, check=True, capture_output=True)
        home = folder / "home"
        turns = [{name: run(home, folder, runners[name]) for name in runners} for _ in range(options.pairs)]
    if any(turn[name]["digests"] != turns[0]["one after the other"]["digests"] for turn in turns for name in runners):
        raise SystemExit("the digests differ")
    rows, gains = [], {}
    for name in runners:
        seconds = statistics.median(turn[name]["seconds"] for turn in turns)
        gains[name] = statistics.median(t["one after the other"]["seconds"] / t[name]["seconds"] for t in turns)
        load = statistics.median(turn[name]["load"] for turn in turns)
        rows.append((name, f"{seconds:.1f}", f"{gains[name]:.2f}", f"{load:.1f}"))
    gain = round(gains[GOVERNED], 2)
    found = Measured(
        claim="Two workers make independent candidates faster",
        conditions=f"{CANDIDATES} passes in Python of {options.seconds:g} s each, and their gates; medians of "
        f"{options.pairs}; the load is that of the whole machine at the end of a run",
        figures=(Figure(name=GOVERNED, value=gain, unit="x", goal=f"at least {GOAL} x", met=gain >= GOAL),),
        columns=("candidates", "seconds", "times as fast", "load of the machine"),
        rows=rows,
    )
    return conclude(found, "machines", options.result)


if __name__ == "__main__":
    sys.exit(main())
