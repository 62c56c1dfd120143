"""What `gauntlet run MODEL --data SAMPLES` keeps of a network's predictions on samples that the run has not seen.

    python benchmarks/kept_predictions.py [NAME ...] [--folder FOLDER] [--work FOLDER] [--full] [--result FILE.json]

The networks are those of `benchmarks/wrong_passes/run.py make`, read from its folder; `detection-apart`,
`detection-suppressed` and `classification-int64` are made of them. Each runs with no configuration on unlabelled
samples. Then the winner and all other candidates that passed their gates are compared with the original file, by ONNX
Runtime and by the definitions in `prediction_agreement.py`, not by the product. Races are short, because the question
is what is kept; `--full` races as `gauntlet run` does. Networks that are named run (again), and the result has all that
ran in `--work`. Exit code 1 when a winner keeps less than 98 %, or a candidate that passed is proven to lose over a
point of accuracy.
"""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from kept_networks import NETWORKS, samples_of, write_model
from prediction_agreement import Agreement, agreement, decoded, steps_on_own_states
from product_run import run_product, settings
from results import Figure, Measured, conclude, script_parser

from configs.schema import PipelineConfig
from flows.record.home import Home
from flows.servers.local_servers import prefect_server
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.run_report import RunReport

FOLDER, WORK = Path(".gauntlet") / "wrong-passes", Path(".gauntlet") / "kept-predictions"
MIN_KEPT, MAX_NEW, MAX_LOST = 98, 5, 1
"""In percent, of the original's predictions, and of accuracy by labels; goals."""
SHORT = (
    *("benchmark.rounds=10", "benchmark.block_ms=10", "benchmark.batch_sizes=[1]", "benchmark.restart_processes=false"),
    *("benchmark.max_aa_deviation=1", "benchmark.profile=false", "quantize_budget_s=120"),
)
COLUMNS = (
    *("network", "recognized as", "winner", "over FP32", "kept by the winner", "new", "passed"),
    *("least kept by one that passed", "most lost by labels"),
)


class Judged(NamedTuple):
    """A network's row, how its winner agrees, and the largest proven loss of any candidate that passed."""

    row: tuple[str, ...]
    winner: Agreement
    proven_loss: float


def run(name: str, folder: Path, work: Path, changes: tuple[str, ...]) -> None:
    """Run the product on a network, and save its report in the working folder."""
    model, samples = work / f"{name}.onnx", work / f"{name}.npz"
    write_model(NETWORKS[name], folder, model)
    np.savez(samples, allow_pickle=False, **samples_of(NETWORKS[name].problem, model)[0])
    words = [str(model), "--data", str(samples), *settings(*changes)]
    report = run_product(home_of(work), work / f"{name}.log", *words)
    (work / f"{name}.json").write_text(report.model_dump_json())


def judge(name: str, work: Path) -> Judged:
    """Compare the files of a network's run with the original, and with the truth, on unseen samples."""
    report = RunReport.model_validate_json((work / f"{name}.json").read_bytes())
    _, unseen, truth = samples_of(NETWORKS[name].problem, work / f"{name}.onnx")
    original, passed = predictions(work / f"{name}.onnx", name, unseen), dict[str, Agreement]()
    for candidate in report.candidates:
        if candidate.artifact is not None and candidate.benchmark:  # only what passed its gates is raced
            other = predictions(home_of(work).store.path(candidate.artifact), name, unseen)
            kept = passed[candidate.name] = agreement(name, original, other, truth)
            print(f"{name}: {candidate.name}: {kept}; the run: {candidate.differences or 'not compared'}", flush=True)
    winner = next(c for c in report.candidates if c.name == report.winner)
    config = PipelineConfig.model_validate(report.config)
    decode = getattr(config.data, "decode", None)
    recognized = f"{getattr(config.data, 'task', None) or 'arrays'}{f' ({decode.kind})' if decode else ''}"
    worst = min(passed, key=lambda candidate: passed[candidate].kept)
    row = (name, recognized, winner.name, f"{winner.benchmark[0].speedup:.2f}", f"{passed[winner.name].kept:.1%}",
           f"{passed[winner.name].new:.1%}", str(len(passed) - 1), f"{passed[worst].kept:.1%} ({worst})",
           f"{max(each.loss for each in passed.values()):.1%}")  # fmt: skip
    return Judged(row, passed[winner.name], max(each.proven_loss for each in passed.values()))


def home_of(work: Path) -> Home:
    """Return the home of the product's runs."""
    return Home((work / "home").resolve())


def predictions(model: Path, name: str, samples: NamedArrays) -> Any:
    """Return what a file predicts for samples, as `agreement` compares it."""
    session = onnxruntime.InferenceSession(model)
    if name.endswith("streaming"):
        return steps_on_own_states(session, samples["x"])["y"].argmax(axis=2).ravel()
    return decoded(name, session.run(None, {session.get_inputs()[0].name: samples["x"]}))


def main() -> int:
    """Run all networks, or those that are named."""
    options_of = script_parser(__doc__)
    options_of.add_argument("names", nargs="*", metavar="NAME", help=f"by default all: {', '.join(NETWORKS)}")
    options_of.add_argument("--folder", type=Path, default=FOLDER, help="of the networks, as wrong_passes makes them")
    options_of.add_argument("--work", type=Path, default=WORK, help="for the models, the samples and the runs")
    options_of.add_argument("--full", action="store_true", help="race as long as gauntlet run does by default")
    options = options_of.parse_args()
    names = options.names or [*NETWORKS]
    if missing := [n for n in names if n not in NETWORKS or not (options.folder / NETWORKS[n].problem).is_dir()]:
        options_of.error(f"no network {', '.join(missing)} in {options.folder}. Fix: wrong_passes/run.py make")
    options.work.mkdir(parents=True, exist_ok=True)
    with prefect_server(home_of(options.work)):
        for name in names:
            run(name, options.folder, options.work, () if options.full else SHORT)
    return conclude(summary([judge(n, options.work) for n in NETWORKS if (options.work / f"{n}.json").exists()]),
                    "measurement", options.result)  # fmt: skip


def summary(networks: list[Judged]) -> Measured:
    """Return the result for all networks."""
    kept, new = (round(100 * worst(n.winner[i] for n in networks), 2) for i, worst in enumerate((min, max)))
    loss = round(100 * max(n.proven_loss for n in networks), 2)
    figures = (
        Figure.at_least("least kept by a winner", kept, MIN_KEPT, "%"),
        Figure.at_most("most new detections of a winner", new, MAX_NEW, "%"),
        Figure.at_most("largest proven loss by labels of any that passed (95 %)", loss, MAX_LOST, "%"),
    )
    claim = "What passes keeps the predictions on samples that no run has seen"
    conditions = (
        "Kept and lost are detections (same class, intersection over union of at least 0.5), whole texts, pixels, "
        "classes, labels and nearest neighbors, by NumPy alone. The runs had no labels, and their races were short"
    )
    return Measured(claim, conditions, figures, COLUMNS, [n.row for n in networks])


if __name__ == "__main__":
    sys.exit(main())
