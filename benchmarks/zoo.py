"""Bring models that people recognise, each with one line of `gauntlet run`, and judge the winner outside the product.

    python benchmarks/zoo.py [MODEL|GROUP ...] [--folder FOLDER] [--rows FILE.jsonl] [--result FILE.json]

A model is right if the winner's outputs are the framework's own, on rows that the run did not see; it may be refused
with a reason and a fix. Wrong files, tracebacks and refusals without a fix are failures. A group is what is before the
first underscore of its models' names, as `kinds`.
"""

import json
import re
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from free_ports import free_port
from product_run import SHARED, run_product, settings, winner_of
from results import Figure, Measured, conclude, script_parser
from zoo_models import MODELS
from zoo_models.zoo_model import ZooModel, run_file

from flows.record.home import Home
from flows.servers.local_servers import prefect_server
from frameworks.keras.tensorflow_setup import start_tensorflow
from gauntlet.core.arrays import Array
from gauntlet.core.errors import StageError

QUICK = ("benchmark.rounds=6", "benchmark.block_ms=2", "benchmark.batch_sizes=[1]", "benchmark.profile=false")
LOSSLESS = ("quantize=[]", "repair.enabled=false", "optimize=[]")
"""What is judged is the source's export: recipes that change values have benchmarks of their own."""
MAX_ERROR, MAX_HALF_ERROR = 1e-3, 5e-3
"""Of an output, over its largest magnitude; of float16."""
GOAL = 0.95
CLAIM = "A model as people have it is taken in one line, or refused with the reason and a way out"
CONDITIONS = "Seeded models of the frameworks; the winner's outputs are compared on rows that the run did not see."
COLUMNS = ("model", "verdict", "judged as", "seconds", "detail")
TABLE = ("framework", "verdict", "judged as", "models", "seconds, median", "which are not right, or why judged so")
Row = tuple[str, str, str, str, str]
AS_MEANT = "refused with reason"
MIN_MODELS = 150
KINDS = "kinds"
"""The group whose models have a row each, with the reason of their problem."""


def judged(name: str, folder: Path, home: Home) -> Row:
    """Run the product on one model, which is made in the folder; return its row of the table."""
    if name.startswith("keras"):  # which draws weights from a seed of its own
        start_tensorflow().utils.set_random_seed(0)
    model = MODELS[name](folder)
    np.savez(folder / "samples.npz", **model.seen)
    data = () if model.source.suffix == ".yaml" else ("--data", str(folder / "samples.npz"))
    log, started, problem = folder / "log.txt", time.monotonic(), ""
    try:
        how = settings(*SHARED, *QUICK, *LOSSLESS)
        report = run_product(home, log, str(model.source), *data, *model.words, *how)
        problem = report.config["data"]["task"] or "arrays"
        verdict, detail = compared(model, winner_of(report, home).file)
        if verdict == "right":
            detail = f"says {model.says}" if model.says else reason(log.read_text())
        if model.says not in log.read_text():
            verdict, detail = "silent", f"the run does not say {model.says}"
        if model.task and model.task != problem:
            verdict, detail = "misjudged", f"its problem is {model.task}"
    except StageError as error:
        verdict, detail = refused(model, f"{log.read_text()} {error}")
    except Exception as error:  # what a user would see as a traceback
        verdict, detail = "traceback", f"{type(error).__name__}: {error}"
    return name, verdict, problem, f"{time.monotonic() - started:.0f}", " ".join(detail.split())[:120]


def reason(log: str) -> str:
    """Return why a model is judged by its problem, as the run says it."""
    problem = re.search(r"^  problem +(.*(?:\n   +.*)*)", log, re.MULTILINE)
    words = " ".join(problem[1].split()) if problem else ""
    return words.partition("because ")[2].partition(";")[0] or words.partition(": ")[2].partition(";")[0]


def compared(model: ZooModel, file: Path) -> tuple[str, str]:
    """Return whether a file's outputs for the unseen rows are the framework's, and the largest error."""
    outputs = run_file(file, model.unseen)
    if len(outputs) != len(model.expected):
        return "wrong", f"{len(outputs)} outputs, not {len(model.expected)}"
    if any(is_constant(output) for output in model.expected):
        return "shows nothing", "an output is the same for all rows"
    errors = [difference(actual, expected) for actual, expected in zip(outputs, model.expected, strict=True)]
    return ("right" if max(errors) <= 1 else "wrong"), f"{max(errors):.2g} of the largest error that is allowed"


def difference(actual: Array, expected: Array) -> float:
    """Return the largest error over the one that is allowed; infinite for other shapes, classes and texts."""
    if actual.shape != expected.shape:
        return np.inf
    if actual.dtype.kind != "f":
        return 0.0 if np.array_equal(actual.astype(str), expected.astype(str)) else np.inf
    limit = MAX_HALF_ERROR if actual.dtype == np.float16 else MAX_ERROR
    wide = expected.astype(np.float64)
    return float(np.abs(actual - wide).max() / (limit * max(np.abs(wide).max(), 1e-9)))


def is_constant(output: Array) -> bool:
    """Return whether rows of an output of floats differ by no more than its errors may."""
    wide = output.astype(np.float64) if output.dtype.kind == "f" and output.size else np.eye(2)
    return bool(np.abs(wide - wide[:1]).max() <= 10 * MAX_ERROR * np.abs(wide).max())


def refused(model: ZooModel, text: str) -> tuple[str, str]:
    """Return whether a refusal is the one that is meant, with a way out."""
    plain = " ".join(text.split())
    if "Traceback" in plain:
        return "traceback", plain[-120:]
    if model.refusal and model.refusal in plain and "Fix:" in plain:
        return AS_MEANT, model.refusal
    return "refused", plain[-120:]


def main() -> int:
    """Judge all models, or those that are named; return 1 where one is neither right nor refused as meant.

    The share that is right is a goal for the product, and no regression where it is missed.
    """
    parser = script_parser(__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"by default all: {', '.join(MODELS)}")
    parser.add_argument("--folder", type=Path, help="keep models and runs here")
    parser.add_argument("--rows", type=Path, help="append each row to this file; models that it has are not run again")
    parser.add_argument("--known", action="store_true", help="run nothing: judge the models that --rows has")
    options = parser.parse_args()
    groups = {name: name.partition("_")[0] for name in MODELS}
    if unknown := set(options.models) - {*groups, *groups.values()}:
        parser.error(f"unknown models {', '.join(sorted(unknown))}; available: {', '.join(MODELS)}")
    names = [name for name, group in groups.items() if not options.models or {name, group} & {*options.models}]
    known = json_rows(options.rows)
    rows = [known[name] for name in names if name in known]
    new = [] if options.known else [name for name in names if name not in known]
    with tempfile.TemporaryDirectory() as temporary:
        root = (options.folder or Path(temporary)).resolve()
        home = Home(root / "home")
        with prefect_server(home, free_port()) if new else nullcontext():  # else each run starts one
            for name in new:
                (root / name).mkdir(parents=True, exist_ok=True)
                rows.append(judged(name, root / name, home))
                print(*rows[-1], sep="  ", flush=True)
                if options.rows:
                    with options.rows.open("a") as file:
                        file.write(json.dumps(dict(zip(COLUMNS, rows[-1], strict=True))) + "\n")
    left = [name for name in names if name not in {row[0] for row in rows}]
    conditions = f"{CONDITIONS} Not run: {', '.join(left)}." if left else CONDITIONS
    conclude(Measured(CLAIM, conditions, figures(rows), TABLE, table(rows)), "corpus", options.result)
    return int(any(row[1] not in ("right", AS_MEANT) for row in rows))


def json_rows(file: Path | None) -> dict[str, Row]:
    """Return the rows of a file by model, the last one of each; none without a file."""
    lines = file.read_text().splitlines() if file is not None and file.exists() else []
    return {each["model"]: tuple(each[column] for column in COLUMNS) for each in map(json.loads, lines)}


def table(rows: list[Row]) -> list[tuple[str, ...]]:
    """Return a row for each framework, verdict and problem, with the names of the models that are not right."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        framework = row[0].partition("_")[0]
        groups.setdefault((row[0] if framework == KINDS else framework, row[1], row[2]), []).append(row)
    made = []
    for key, group in sorted(groups.items()):
        seconds = f"{statistics.median(float(row[3]) for row in group):.0f}"
        names = ", ".join(f"{row[0].partition('_')[2]} ({row[4]})" for row in group if row[1] != "right")
        names = group[0][4] if key[0] == group[0][0] else names
        made.append((*key, str(len(group)), seconds, names))
    return made


def figures(rows: list[Row]) -> tuple[Figure, ...]:
    """Return what the claim rests on, with its goals."""
    verdicts = [row[1] for row in rows]
    models, right, wrong = len(rows), verdicts.count("right"), verdicts.count("wrong")
    good, of_all = right + verdicts.count(AS_MEANT), f"of {models}"
    return (
        Figure.at_least("models", models, MIN_MODELS),
        Figure.at_least("right", right, GOAL * models, of_all, f"at least {GOAL:.0%}"),
        Figure.at_least("right, or refused as meant", good, models, of_all, "all"),
        Figure.exactly("wrong files", wrong),
        Figure.exactly("tracebacks", verdicts.count("traceback")),
    )


if __name__ == "__main__":
    sys.exit(main())
