"""Fifty small models through `gauntlet fleet`, one in five broken, killed once: what each comes to, and the memory.

    python benchmarks/many_models.py [--models 50] [--workers 2] [--seed 1]

The command is ended with SIGKILL at a random moment in its second third, and given again. Prints a row a kind of model,
and exits with 1 when a goal is missed.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
from results import Figure, Measured, add_result_option, conclude

GAUNTLET = Path(sys.executable).with_name("gauntlet")
SETTINGS = ("benchmark.batch_sizes=[1]", "benchmark.rounds=6", "benchmark.block_ms=2", "benchmark.profile=false")
SETTINGS += ("benchmark.restart_processes=false", "numerics.samples=8", "quantize=[]", "optimize=[]")
TIMED = ("benchmark", "explain", "select", "confirm", "package")
"""Their verdicts depend on the clock, so they are never taken from a cache."""
GRAPH = """<ir_version: 8, opset_import: ["": 18]> m (float[n,64] x) => (float[n,10] y)
{ h = MatMul(x, a)  r = OPERATOR(h)  y = MatMul(r, b) }"""
BROKEN = ("text in place of a model", "a file cut in half", "weights that are not numbers", "an unknown operator",
          "a configuration with an unknown key")  # fmt: skip
WHOLE = "a whole model"
STEADY = 5
"""From so many models on, the fleet's process has loaded all that it needs."""
MOST_GROWTH = 0.05


def write_models(folder: Path, count: int, seed: int) -> dict[str, str]:
    """Write the models, every fifth of them broken; return what each is, by name."""
    values, kinds = np.random.default_rng(seed), {}
    for number in range(count):
        kind = BROKEN[number // 5 % len(BROKEN)] if number % 5 == 1 else WHOLE
        path = folder / f"m{number:03}.onnx"
        proto = onnx.parser.parse_model(GRAPH.replace("OPERATOR", "Rell" if kind == BROKEN[3] else "Relu"))
        for name, shape in {"a": (64, 128), "b": (128, 10)}.items():
            weights = values.standard_normal(shape, np.float32) * (np.nan if kind == BROKEN[2] else 0.1)
            proto.graph.initializer.append(onnx.numpy_helper.from_array(weights.astype(np.float32), name))
        content = proto.SerializeToString()
        if kind == BROKEN[4]:
            path, content = path.with_suffix(".yaml"), b"name: m\nno_such_key: 1\n"
        content = b"this is text" if kind == BROKEN[0] else content
        path.write_bytes(content[: len(content) // 2] if kind == BROKEN[1] else content)
        kinds[path.name] = kind
    return kinds


def events(folders: Iterator[Path], op: str) -> list[dict[str, Any]]:
    """Return the events of one kind in the journals of some folders."""
    lines = [line for folder in sorted(folders) for line in (folder / "journal.jsonl").read_bytes().splitlines()]
    return [event for event in map(json.loads, lines) if event["op"] == op]


def finished(home: Path) -> list[dict[str, Any]]:
    """Return the models that are done, in the order in which they were."""
    return events((home / "fleets").glob("*"), "finished")


def run(folder: Path, words: list[str], kill_after: int | None, wait_s: float) -> tuple[int, str, list[int]]:
    """Run the command to its end, or until so many models are done and some seconds have passed.

    Returns:
        The exit code, what it printed, and the bytes in memory of its process, once a second.
    """
    home, memory = folder / "home", []
    hidden = ("PREFECT_API_URL", "PREFECT_HOME", "MLFLOW_TRACKING_URI")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"GAUNTLET_HOME": str(home), "COLUMNS": "200"}
    with (folder / "output").open("wb") as output:
        process = psutil.Popen(words, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
        while process.poll() is None:
            memory.append(process.memory_info().rss)
            if kill_after is not None and len(finished(home)) >= kill_after:
                time.sleep(wait_s)
                children = process.children(recursive=True)
                process.send_signal(signal.SIGKILL)
                psutil.wait_procs(children, timeout=120)
            time.sleep(1)
    return process.wait(), (folder / "output").read_text(), memory


def measure(count: int, workers: int, seed: int) -> Measured:
    """Run the fleet, kill it, run it again; compare with what was written."""
    moment, began = random.Random(seed), time.monotonic()
    kill_after, wait_s = moment.randint(count // 3, 2 * count // 3), moment.uniform(0, 5)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "models").mkdir()
        kinds = write_models(folder / "models", count, seed)
        words = [str(GAUNTLET), "fleet", "models", "--workers", str(workers)]
        words += [word for setting in SETTINGS for word in ("--set", setting)]
        run(folder, words, kill_after, wait_s)
        before = len(finished(folder / "home"))
        code, shown, memory = run(folder, words, None, 0)
        done = finished(folder / "home")
        works = [e for e in events((folder / "home" / "runs").glob("*"), "work_finished") if e["stage"] not in TIMED]
        if len(done) < count:
            raise SystemExit(shown)
    minutes, load = (time.monotonic() - began) / 60, os.getloadavg()[0]
    verdicts = {one["result"]["model"]: one["result"]["verdict"] for one in done}
    right = [name for name, kind in kinds.items() if (verdicts[name] == "passed") == (kind == WHOLE)]
    table = {words[0]: words[1] for line in shown.splitlines() if len(words := line.split()) > 1}
    named = [name for name in kinds if table.get(name) == verdicts[name]]
    again = Counter(e["key"] for e in works if not e["cached"])
    rss = [one["rss_bytes"] for one in done[before:]]
    steady = min(STEADY, len(rss) // 2)
    growth = rss[-1] / rss[steady] - 1
    figures = (
        Figure(name="models with the right verdict", value=len(right), unit=f"of {count}", goal="all",
               met=len(right) == count),
        Figure(name="models that the table names with their verdict", value=len(named), unit=f"of {count}", goal="all",
               met=len(named) == count and code == 1),
        Figure(name="models run twice", value=len(done) - len(verdicts), goal="0", met=len(done) == len(verdicts)),
        Figure(name="stages done twice", value=sum(again.values()) - len(again), unit=f"of {len(again)}", goal="0",
               met=sum(again.values()) == len(again)),
        Figure(name=f"memory of the fleet's process, from model {before + steady + 1} to the last", value=100 * growth,
               unit="%", goal=f"at most {MOST_GROWTH:.0%} more", met=growth <= MOST_GROWTH),
        Figure(name="most memory of the fleet's process", value=round(max(memory) / 1e6), unit="MB"),
    )  # fmt: skip
    rows = []
    for kind in (WHOLE, *BROKEN):
        found = [one["result"] for one in done if kinds[one["result"]["model"]] == kind]
        outcomes = Counter(f"{one['verdict']} {one['stopped_at']}".strip() for one in found)
        rows.append((kind, str(len(found)), ", ".join(f"{word}: {n}" for word, n in outcomes.items())))
    return Measured(
        "A fleet names every verdict, keeps its memory, and does nothing twice after a kill",
        f"{workers} models at a time; killed {wait_s:.1f} s after model {kill_after}, with {before} done; "
        f"{minutes:.0f} minutes in all, at a load of {load:.1f}; most of it is starting a process a model",
        tuple(figure.replace(value=round(figure.value, 1)) for figure in figures),
        ("models", "number", "verdicts"),
        rows,
    )


def main(words: Sequence[str] | None = None) -> int:
    """Run the fleet; return 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1, help="of the weights, and of the moment of the kill")
    add_result_option(parser)
    asked = parser.parse_args(words)
    found = measure(asked.models, asked.workers, asked.seed)
    return conclude(found, "machines", asked.result)


if __name__ == "__main__":
    sys.exit(main())
