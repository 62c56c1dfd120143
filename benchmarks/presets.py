"""What presets reach and how long they take: each in a new home, by the command line, as a user runs it.

    python benchmarks/presets.py [PRESET ...] [--again]

Prints of each preset: the FP32 model's primary metric on the test images beside the preset's own limit, the largest
difference of the exported model from its source, the winner, and the seconds of the training and of the whole command.
With `--again`, each preset is run a second time in the same home: what unchanged work costs. Nothing else should run
meanwhile.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results import Figure, Measured, conclude, script_parser

from gauntlet.core.run_report import RunReport

GAUNTLET = Path(sys.executable).with_name("gauntlet")
GOAL_AGAIN = 0.25
"""Of the first run's time."""
GOALS = {
    "digits-detection": {"map": ("mAP@[.5:.95]", 0.76), "map_50": ("mAP@.5", 0.96)},
    "digits-segmentation": {"miou": ("mIoU", 0.8)},
}
"""Preset -> metric -> its name for people, and what it is to reach; for others, the preset's own limit."""
TRAINING_S = 360
"""Of those, on two slow cores."""
DIFFERENCE = "largest difference from the source"
COLUMNS = ("preset", "score", "limit", DIFFERENCE, "winner", "training, s", "all, s", "again, s")


def ran(preset: str, home: str) -> tuple[RunReport, float]:
    """Run a preset; return its report and the seconds of the command."""
    start = time.perf_counter()
    environment = {**os.environ, "GAUNTLET_HOME": home}
    subprocess.run([GAUNTLET, "run", preset], env=environment, stdout=subprocess.DEVNULL, check=True)
    seconds = time.perf_counter() - start
    newest = max(Path(home).glob("runs/*/report.json"))
    return RunReport.model_validate_json(newest.read_bytes()), seconds


def value(report: RunReport, stage: str, check: str) -> tuple[float, float]:
    """Return what a check of the main line measured, and its limit."""
    entry = report.stage(stage)
    assert entry is not None
    result = next(each for each in entry.checks if each.name == check)
    return float(result.value or 0), float(result.limit)


def reached(preset: str, report: RunReport) -> list[Figure]:
    """Return what the FP32 model reaches on the test images, and for how long it was trained."""
    train, evaluate = report.stage("train"), report.stage("evaluate")
    assert train is not None and evaluate is not None
    if preset not in GOALS:
        accuracy, least = value(report, "evaluate", "evaluate.min_accuracy")
        return [Figure.at_least(f"{preset}, FP32 accuracy", round(100 * accuracy, 1), 100 * least, "%")]
    figures = []
    for metric, (title, least) in GOALS[preset].items():
        score = evaluate.facts["scores"][metric]  # type: ignore[index, call-overload]
        figures.append(Figure.at_least(f"{preset}, FP32 {title}", round(score, 3), least))
    return [*figures, Figure.at_most(f"{preset}, training", round(train.seconds), TRAINING_S, "s")]


def line(preset: str, report: RunReport, first: float, again: float | None) -> tuple[list[Figure], tuple[str, ...]]:
    """Return a preset's figures and its line of the table."""
    train = report.stage("train")
    assert train is not None
    limit = "evaluate.min_score" if preset in GOALS else "evaluate.min_accuracy"
    score, least = value(report, "evaluate", limit)
    difference, _ = value(report, "numerics", "numerics.max_rel_error")
    figures = [*reached(preset, report), Figure(name=f"{preset}, the first run", value=round(first), unit="s")]
    if again is not None:
        name, share = f"{preset}, the same command again, over the first run", round(again / first, 2)
        figures.append(Figure.at_most(name, share, GOAL_AGAIN))
    seconds = (f"{train.seconds:.0f}", f"{first:.0f}")
    cells = (f"{score:.1%}", f"{least:.0%}", f"{difference:.1e}", str(report.winner), *seconds)
    return figures, (preset, *cells, "" if again is None else f"{again:.0f}")


def main() -> int:
    """Run each preset, naming it when it begins, and print the table; 1 when a goal is missed."""
    parser = script_parser(__doc__)
    parser.add_argument("presets", nargs="*", default=["digits-resnet18"])
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    figures: list[Figure] = []
    rows: list[tuple[str, ...]] = []
    for preset in options.presets:
        print(preset, file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as home:
            report, first = ran(preset, home)
            again = ran(preset, home)[1] if options.again else None
        more, cells = line(preset, report, first, again)
        figures.extend(more)
        rows.append(cells)
    usual = "The presets reach their accuracy, and unchanged work is not repeated"
    learned = "A detector and a segmenter are learned from nothing within minutes"
    measured = Measured(
        claim=learned if set(options.presets) <= set(GOALS) else usual,
        conditions="each preset in a new home; seconds are those of the whole command",
        figures=tuple(figures),
        columns=COLUMNS,
        rows=rows,
    )
    return conclude(measured, "pipeline", options.result)


if __name__ == "__main__":
    sys.exit(main())
