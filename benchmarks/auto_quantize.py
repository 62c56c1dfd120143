"""What `quantize: auto` chooses when nobody picks a recipe, and what the search for it costs.

    python benchmarks/auto_quantize.py [--network resnet18] [--fresh]

Runs the pipeline on digits, in a home that is kept: a second call trains nothing and measures again, `--fresh` repeats
everything. All candidates stay in the race to its end. Prints what became of each; the choice beside static U8S8, which
a person would pick by hand on x86-64, round by round in the same race; and the seconds of the search by stage:
everything that is done for candidates, without training, the main line and the race.
"""

import argparse
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from mobile_networks import weights_of
from networks import CACHE
from results import Figure, add_result_option, write_result

from gauntlet.benchmarking.confidence import median_shift_interval
from gauntlet.core.run_report import CandidateEntry, RunReport
from tasks.benchmark.facts import BenchmarkFacts

GAUNTLET = Path(sys.executable).with_name("gauntlet")
ANY_QUALITY = ("evaluate.min_accuracy=0", "evaluate.min_recall=0", "evaluate.max_generalization_gap=1")
NETWORKS = {
    "resnet18": ("digits-resnet18",),
    "mobilenetv3": (
        "digits-resnet18",
        "name=digits-mobilenetv3",
        "data.image_size=224",
        "numerics.max_abs_error=0.001",
    ),
    "efficientnetb0": ("digits-efficientnetb0-keras", "train.epochs=3", "numerics.max_abs_error=0.001"),
}
"""A preset, and what is changed in it. MobileNetV3 learned at 32 pixels and is asked for its speed at 224."""
HAND_PICKED = "static-u8s8"
SEARCH = ("calibrate", "explain")
"""Stages of the search that belong to no candidate."""
GOAL_S = 60


def ran(network: str, *, fresh: bool) -> RunReport:
    """Run the pipeline, and return its report."""
    home = CACHE / "auto" / network
    preset, *changes = NETWORKS[network]
    if network == "mobilenetv3":
        name, weights = "mobilenet_v3_large", weights_of("mobilenet_v3_large")
        made = f"factory: 'torchvision.models:{name}', arguments: {{num_classes: 10}}, weights: {weights}"
        changes.append(f"train={{kind: torch-model, {made}}}")
    settings = ("quantize=auto", "benchmark.early_stopping=false", *ANY_QUALITY, *changes)
    words = [*(word for setting in settings for word in ("--set", setting)), *(["--fresh"] if fresh else [])]
    environment = {**os.environ, "GAUNTLET_HOME": str(home)}
    subprocess.run([GAUNTLET, "run", preset, *words], env=environment, stdout=subprocess.DEVNULL, check=True)
    newest = max(home.glob("runs/*/report.json"), key=lambda path: path.stat().st_mtime)
    return RunReport.model_validate_json(newest.read_bytes())


def print_candidates(report: RunReport) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Print a line a candidate; return the columns and the lines."""
    batches = [row.batch for row in report.candidates[0].benchmark]
    columns = ("candidate", "SQNR, dB", "accuracy", *(f"batch {batch}" for batch in batches), "verdict")
    print("|", " | ".join(columns), "|")
    print("|---|---:|---:|" + "---:|" * len(batches) + "---|")
    lines = []
    for entry in report.candidates:
        sqnr_db = "" if entry.sqnr_db is None else f"{entry.sqnr_db:.1f}"
        top1 = "" if entry.accuracy is None else f"{entry.accuracy:.4f}"
        speeds = _speeds(entry) or ["" for _ in batches]
        verdict = "**chosen**" if entry.name == report.winner else f"{entry.status}: {entry.reason[:60]}"
        lines.append((entry.name, sqnr_db, top1, *speeds, verdict))
        print("|", " | ".join(lines[-1]), "|")
    return columns, lines


def _speeds(entry: CandidateEntry) -> list[str]:
    if entry.name == "fp32":
        return [f"{row.median_ms:.2f} ms" for row in entry.benchmark]
    return [f"{row.speedup:.2f} [{row.speedup_low:.2f}, {row.speedup_high:.2f}]" for row in entry.benchmark]


def print_choice(report: RunReport, race: BenchmarkFacts) -> list[Figure]:
    """Print how fast the choice is in multiples of the hand-picked recipe, beside the reference over itself."""
    figures = []
    print(f"\nchosen: {report.winner}, {report.reason}")
    names = {result.candidate for result in race.results if result.rows}
    for row in race.control if {HAND_PICKED, report.winner} <= names else ():
        rounds = [race.result(name).round_medians_ms[row.batch] for name in (HAND_PICKED, str(report.winner))]
        by_hand, chosen = (np.log(values) for values in rounds)
        speed, low, high = (math.exp(value) for value in median_shift_interval(by_hand - chosen))
        told = f"{speed:.3f} [{low:.3f}, {high:.3f}] times the speed of {HAND_PICKED}"
        control = f"{row.speedup:.3f} [{row.speedup_low:.3f}, {row.speedup_high:.3f}]"
        print(f"batch {row.batch}: {told}; FP32 over itself {control}")
        name = f"chosen ({report.winner}) over {HAND_PICKED}, picked by hand, batch {row.batch}"
        figures.append(Figure(name=name, value=round(speed, 2), low=round(low, 2), high=round(high, 2)))
    return figures


def print_search(report: RunReport) -> Figure:
    """Print the seconds of the search by stage; return their sum."""
    searched = [entry for entry in report.stages if entry.candidate or entry.stage in SEARCH]
    seconds: dict[str, float] = {}
    for entry in searched:
        seconds[entry.stage] = seconds.get(entry.stage, 0.0) + entry.seconds
    told = ", ".join(f"{stage} {taken:.1f}" for stage, taken in seconds.items())
    cached = " (of an earlier run, where it was cached)" if any(entry.cached for entry in searched) else ""
    spent = round(sum(seconds.values()), 1)
    print(f"\nsearch: {spent} s{cached}: {told}")
    name = f"the search: everything done for candidates and calibration{cached}"
    return Figure(name=name, value=spent, unit="s", goal=f"at most {GOAL_S} s", met=spent <= GOAL_S)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet18", choices=sorted(NETWORKS))
    parser.add_argument("--fresh", action="store_true", help="repeat everything, training too")
    add_result_option(parser)
    options = parser.parse_args()
    report = ran(options.network, fresh=options.fresh)
    race = next(entry for entry in report.stages if entry.stage == "benchmark")
    columns, lines = print_candidates(report)
    figures = [*print_choice(report, BenchmarkFacts.model_validate(race.facts)), print_search(report)]
    if options.result:
        write_result(
            options.result,
            topic="auto",
            claim=f"{options.network}: the automatic choice is as fast as a recipe picked by hand",
            conditions=f"{' '.join(NETWORKS[options.network])}; quantize: auto; all candidates stay in the race",
            figures=figures,
            columns=columns,
            rows=lines,
        )


if __name__ == "__main__":
    main()
