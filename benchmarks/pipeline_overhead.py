"""What the pipeline costs beside a plain script that does the same steps: both in one run, in turns.

    python benchmarks/pipeline_overhead.py [--pairs 3] [--epochs 1]

Prints seconds and the ratio by stage (medians over the pairs), and the overhead: everything of the pipeline but
training and benchmarking, less everything of the script but training. Whole processes are timed, so start-up counts on
both sides; the pipeline runs in a new home every time, so making Prefect's and MLflow's databases counts too.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results import Figure, add_result_option, write_result

from gauntlet.core.run_report import RunReport

SCRIPT = Path(__file__).with_name("plain_script.py")
GAUNTLET = Path(sys.executable).with_name("gauntlet")
PASSES = (
    "optimize=[{kind: ort, level: basic}, {kind: ort, level: extended}, {kind: ort, level: all}, "
    "{kind: onnxoptimizer}, {kind: onnxsim}, {kind: onnxslim}]"
)
"""What the script does too: no chain."""
GOAL_S = 15
NOT_COUNTED = ("train", "benchmark")


def plain(epochs: int) -> dict[str, float]:
    """Run the script; return seconds by step, and the whole process's."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, SCRIPT, str(epochs)], capture_output=True, text=True, check=True)
    return {**json.loads(done.stdout.splitlines()[-1]), "whole": time.perf_counter() - start}


def pipeline(epochs: int) -> dict[str, float]:
    """Run the pipeline in an empty home; return seconds by stage, and the whole process's."""
    with tempfile.TemporaryDirectory() as home:
        limits = ["evaluate.min_accuracy=0", "evaluate.min_recall=0", "evaluate.max_generalization_gap=1"]
        settings = [f"train.epochs={epochs}", *limits, "benchmark.rounds=6", "benchmark.block_ms=5", PASSES]
        words = [word for setting in settings for word in ("--set", setting)]
        start = time.perf_counter()
        done = subprocess.run(
            [GAUNTLET, "run", "digits-resnet18", *words],
            env={**os.environ, "GAUNTLET_HOME": home},
            stdout=subprocess.DEVNULL,
            check=False,
        )
        whole = time.perf_counter() - start
        if done.returncode != 0:
            raise SystemExit(f"the pipeline ended with {done.returncode}")
        report = next(Path(home).glob("runs/*/report.json"))
        stages = RunReport.model_validate_json(report.read_bytes()).stages
    seconds: dict[str, float] = {}
    for entry in stages:
        seconds[entry.stage] = seconds.get(entry.stage, 0.0) + entry.seconds
    return {**seconds, "whole": whole}


def main() -> None:
    """Measure in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=1)
    add_result_option(parser)
    options = parser.parse_args()
    pairs = [(plain(options.epochs), pipeline(options.epochs)) for _ in range(options.pairs)]
    print("| stage | script, s | pipeline, s | ratio |\n|---|---:|---:|---:|")
    table = []
    for name in [*pairs[0][1]]:
        script = statistics.median(p[0].get(name, 0.0) for p in pairs)
        ours = statistics.median(p[1][name] for p in pairs)
        table.append((name, f"{script:.2f}" if script else "", f"{ours:.2f}", f"{ours / script:.2f}" if script else ""))
        print("|", " | ".join(table[-1]), "|")
    overheads = [
        (ours["whole"] - sum(ours[name] for name in NOT_COUNTED)) - (script["whole"] - script["train"])
        for script, ours in pairs
    ]
    overhead = round(statistics.median(overheads), 1)
    print(f"\noverhead: {overhead} s (pairs: {', '.join(f'{o:.1f}' for o in overheads)})")
    if options.result:
        more = "pipeline more than a plain script, without training and benchmark"
        write_result(
            options.result,
            topic="pipeline",
            claim="The pipeline adds little to the work that it does",
            conditions=f"ResNet-18 on digits, {options.epochs} epochs; {len(pairs)} pairs; a new home each time",
            figures=[Figure(name=more, value=overhead, unit="s", goal=f"at most {GOAL_S} s", met=overhead <= GOAL_S)],
            columns=("stage", "script, s", "pipeline, s", "ratio"),
            rows=table,
        )


if __name__ == "__main__":
    main()
