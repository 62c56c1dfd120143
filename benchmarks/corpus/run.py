"""What `gauntlet run MODEL` makes of models from outside, with no configuration: a corpus of files, made by script.

    python benchmarks/corpus/run.py [NAME ...] [--folder FOLDER] [--budget-s SECONDS] [--shared] [--full] [--list]
                                    [--result FILE.json]

Makes the models (all, or those whose names contain one of the words), runs each on random samples, and writes one
`outcomes/NAME.json` a model and the table `corpus.md` into the folder. All run in this process, because starting one
takes longer than most of these runs; a run that was interrupted is continued, and models that are named run again.
Every model must end with a winner, or with FP32 and reasons that name accuracy or speed. Exit code 1 when a candidate
was rejected for a technical reason, or a run took too long. Races are short, because the question is what is rejected
and why, not how fast the winner is; `--full` races as `gauntlet run` does.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from all_models import ARGUMENTS, MODELS
from outcome import Outcome

from flows.record.home import Home
from flows.servers.local_servers import prefect_server
from gauntlet.core.errors import one_line

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the folder of the benchmarks' shared modules
from product_run import run_product, settings
from results import Figure, add_result_option, write_result

TIMEOUT_S = 300
LEAST_MODELS = 60
CRASHED = "the process ended"
"""An outcome until the run has another; a corpus run that is continued begins behind it."""
QUICK = (
    *("benchmark.rounds=6", "benchmark.block_ms=5", "benchmark.batch_sizes=[1]", "benchmark.restart_processes=false"),
    *("benchmark.max_aa_deviation=1", "benchmark.profile=false", "numerics.samples=8", "data.samples=32"),
    "repair.budget_s=4",
)
COLUMNS = ("model", "MB", "winner", "over FP32", "SQNR, dB", "rejected for accuracy or speed", "technical")
CONDITIONS = (
    "Each model runs with no configuration on 32 random samples, in races of 6 rounds of 5 ms at batch 1, because the "
    "question is what is rejected and why, not how fast the winner is"
)
SHARED = "Other work ran on the machine: times are not judged, and ratios are rough"


def run_corpus() -> int:
    """Run the corpus and print a line a model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of the names to run; by default all")
    parser.add_argument("--folder", type=Path, default=Path("corpus"), help="for the models, the runs and the outcomes")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="start no further model after this time")
    parser.add_argument("--shared", action="store_true", help="other work runs on the machine: times are not judged")
    parser.add_argument("--full", action="store_true", help="race as long as gauntlet run does by default")
    parser.add_argument("--list", action="store_true", help="print the names")
    add_result_option(parser)
    options = parser.parse_args()
    names = [n for n in MODELS if not options.names or any(part in n for part in options.names)]
    if options.list:
        print("\n".join(names))
        return 0
    folder: Path = options.folder
    (folder / "outcomes").mkdir(parents=True, exist_ok=True)
    home = Home((folder / "home").resolve())
    start = monotonic()
    with prefect_server(home):  # shared by all runs
        for name in names:
            target = folder / "outcomes" / f"{name}.json"
            if (options.names or not target.exists()) and monotonic() - start < options.budget_s:
                target.write_text(Outcome(name=name, technical={"run": CRASHED}).model_dump_json(indent=1))
                outcome = run(name, folder, home, () if options.full else QUICK)
                target.write_text(outcome.model_dump_json(indent=1))
                faults = outcome.technical or ""
                print(f"{name:45} {outcome.seconds:6.1f} s  {outcome.winner or 'FAILED'}  {faults}", flush=True)
    written = [path for name in names if (path := folder / "outcomes" / f"{name}.json").exists()]
    outcomes = [Outcome.model_validate_json(path.read_bytes()) for path in written]
    (folder / "corpus.md").write_text(markdown(outcomes))
    if options.result:
        write(options.result, outcomes, len(names), shared=options.shared)
    return int(any(one.technical or (one.seconds > TIMEOUT_S and not options.shared) for one in outcomes))


def run(name: str, folder: Path, home: Home, changes: tuple[str, ...]) -> Outcome:
    """Make one model, run `gauntlet run` on it in this process, and return what became of it."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        MODELS[name](path)
    words = [str(path), *ARGUMENTS.get(name, ()), *settings(*changes)]
    start = monotonic()
    try:
        report = run_product(home, path.with_suffix(".log"), *words)
    except Exception as error:  # whatever a user would see as a traceback
        fault = {"run": f"{type(error).__name__}: {one_line(error)}"}
        return Outcome(name=name, seconds=monotonic() - start, size_bytes=path.stat().st_size, technical=fault)
    return Outcome.of(name, monotonic() - start, path.stat().st_size, report)


def row(outcome: Outcome) -> tuple[str, ...]:
    """Return a model's line of the table."""
    ratio = "1" if outcome.winner else ""
    if outcome.row:
        ratio = f"{outcome.row.speedup:.2f} [{outcome.row.speedup_low:.2f}, {outcome.row.speedup_high:.2f}]"
    noise = "" if outcome.sqnr_db is None else f"{float(outcome.sqnr_db):.0f}"
    technical = "; ".join(f"{name}: {one_line(reason)}" for name, reason in outcome.technical.items())
    cells = (f"{outcome.size_bytes / 1e6:.1f}", outcome.winner or "failed", ratio, noise, rejections(outcome))
    return (outcome.name, *cells, technical.replace("|", "/") or "none")


def rejections(outcome: Outcome) -> str:
    """Count the rejected candidates by what their reason begins with, and those that do not apply."""
    kinds = ["accuracy" if reason.startswith(("accuracy.", "numerics.", "portability.")) else "speed"
             for reason in outcome.rejected.values()]  # fmt: skip
    counts = {"accuracy": kinds.count("accuracy"), "speed": kinds.count("speed")}
    counts["not applicable"] = len(outcome.inapplicable)
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)


def markdown(outcomes: Sequence[Outcome]) -> str:
    """Return the table as Markdown."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (COLUMNS, ["---"] * len(COLUMNS), *map(row, outcomes))]
    return "\n".join([*lines, ""])


def write(path: Path, outcomes: Sequence[Outcome], models: int, *, shared: bool) -> None:
    """Write the result for docs/benchmarks.md."""
    faults = sum(bool(one.technical) for one in outcomes)
    slow = sum(one.seconds > TIMEOUT_S for one in outcomes)
    ran = f"{len(outcomes)} of {models} models were run"
    figures = [
        Figure(
            name="models run", value=len(outcomes), goal=f"at least {LEAST_MODELS}", met=len(outcomes) >= LEAST_MODELS
        ),
        Figure(name="with a technical rejection", value=faults, goal="none", met=not faults),
        Figure(name="with another winner than FP32", value=sum(one.winner not in (None, "fp32") for one in outcomes)),
    ]
    if not shared:
        figures.append(Figure(name=f"over {TIMEOUT_S} s", value=slow, goal="none", met=not slow))
    write_result(
        path,
        topic="corpus",
        claim="Models as others export them end with a winner, or with reasons of accuracy or speed",
        conditions=". ".join([CONDITIONS, ran, *([SHARED] if shared else [])]),
        figures=figures,
        columns=COLUMNS,
        rows=[row(one) for one in outcomes],
    )


if __name__ == "__main__":
    sys.exit(run_corpus())
