"""How often the checks without labels pass a file that lost accuracy, or refuse one that lost none.

    python benchmarks/wrong_passes/run.py make [PROBLEM ...] [--folder FOLDER]
    python benchmarks/wrong_passes/run.py judge [PROBLEM ...] [--folder FOLDER] [--files] [--result FILE.json]

`make` trains small labelled problems, writes quantized and damaged files of each, and saves the outputs of all on the
test samples. `judge` shows these outputs to the product's checks without labels, and counts what the labels contradict.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from damaged_files import RECIPES, Source, damage_all
from labelled_problems import PROBLEMS, STREAMS, Trained
from saved_files import FED_BACK, LIMIT, LIMITS, REFERENCE, TRUTH, DamagedFile, SavedProblem, judged, save_outputs

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.problems import problem_of
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the folder of the benchmarks' shared modules
from results import Figure, Measured, conclude, script_parser

FOLDER = Path(".gauntlet") / "wrong-passes"
BATCH = 16
WRONG_PASSES, WRONG_REFUSALS = 0.03, 0.05
"""Goals: at most this share of the bad files, and of the good ones."""
CLAIM = "Without labels, the checks refuse files that lose accuracy"
CONDITIONS = (
    f"A file is bad where labels prove at 95 % that it loses more than {LIMIT} of the problem's metric, and good where "
    f"it passes every check with labels, and keeps at least {LIMITS.min_agreement:.0%} of the detections. All others "
    "are only in the last four columns, which count by the measured loss alone, although so few samples cannot "
    "tell a loss of 0.009 from one of 0.011. The sizes of many "
    "damages are bisected to lie near the limit."
)
COUNTS = (
    *("files", "bad", "of these pass", "good", "of these refused"),
    *(f"measured to lose more than {LIMIT}", "of these pass", "all others", "of these refused"),
)


def make(name: str, folder: Path) -> None:
    """Train a problem, and save the outputs and losses of all its files."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    trained = PROBLEMS[name]()
    folder.mkdir(parents=True, exist_ok=True)
    model = trained.export(folder / "model.onnx")
    problem, files = problem_of(trained.signature, trained.truth), list[DamagedFile]()

    def run(model: Path | bytes, title: str) -> tuple[NamedArrays, float]:
        level = "all" if title in RECIPES else "basic"  # integer kernels would misread Q/DQ nodes that were changed
        session = open_session(model, level=level, threads=1)
        outputs = batched_inference(session, trained.test).run(BATCH)
        if "state" in trained.test:  # what the product sees, and what the model does on its own states
            outputs |= {FED_BACK: fed_back(session, trained)}
        main = problem.primary_output
        predictions = problem.predictions_of(outputs | {main: outputs.get(FED_BACK, outputs[main])})
        assert predictions is not None
        return outputs, problem.score(predictions, trained.truth)[problem.metric]

    reference, before = run(model, "FP32")
    save_outputs(folder, REFERENCE, reference)
    np.savez(folder / TRUTH, allow_pickle=False, labels=trained.truth)

    def loss_of(title: str, proto: onnx.ModelProto) -> float:
        outputs, score = run(proto.SerializeToString(), title)
        save_outputs(folder, f"{len(files)}.npz", outputs)
        files.append(DamagedFile(name=title, loss=before - score))
        return before - score

    damage_all(Source.of(folder, trained.calibration), loss_of, LIMIT)
    how = {"signature": trained.signature, "metric": problem.metric, "score": before}
    SavedProblem(name=name, files=tuple(files), **how).write(folder)


def fed_back(session: Any, trained: Trained) -> Array:
    """Return the scores of a recurrent network that runs on its own states; samples are ordered (step, stream)."""
    state, scores = trained.test["state"][:STREAMS], []
    for start in range(0, len(trained.truth), STREAMS):
        step, state = session.run(None, {"x": trained.test["x"][start : start + STREAMS], "state": state})
        scores.append(step)
    return np.concatenate(scores)


def judge(folders: list[Path], *, verbose: bool) -> Measured:
    """Show the outputs of all files to the product's checks, and count its errors."""
    rows, total = [], np.zeros(len(COUNTS), int)
    for folder in folders:
        problem, counts = SavedProblem.read(folder), np.zeros(len(COUNTS), int)
        for file, bad, good, failed in judged(folder):
            loses = not file.loss <= LIMIT
            counts += [1, bad, bad and not failed, good, good and bool(failed),
                       loses, loses and not failed, not loses, not loses and bool(failed)]  # fmt: skip
            if verbose:
                truth = "bad" if bad else "good" if good else "not resolved"
                reasons = ", ".join(f"{check.name} {check.value:.4g}" for check in failed) or "passes"
                print(f"{problem.name}: {file.name}: loses {file.loss:.4f}, {truth}: {reasons}", flush=True)
        total += counts
        rows.append((problem.name, f"{problem.metric} {problem.score:.3f}", *map(str, counts.tolist())))
    rows.append(("all", "", *map(str, total.tolist())))
    _, bad, bad_passed, good, refused, losing, losing_passed, others, others_refused = total.tolist()
    figures = (
        share("bad files that pass", bad_passed, bad, WRONG_PASSES),
        share("good files that are refused", refused, good, WRONG_REFUSALS),
        share(f"files that pass, of those measured to lose more than {LIMIT}", losing_passed, losing),
        share("files that are refused, of all others", others_refused, others),
    )
    return Measured(CLAIM, CONDITIONS, figures, ("problem", "metric of FP32", *COUNTS), rows)


def share(name: str, count: int, total: int, goal: float | None = None) -> Figure:
    """Return a share in percent, with its goal if it has one."""
    value = round(100 * count / max(total, 1), 1)
    return Figure(name=name, value=value, unit="%") if goal is None else Figure.at_most(name, value, 100 * goal, "%")


def main() -> int:
    """Make or judge."""
    parser = script_parser(__doc__)
    parser.add_argument("step", choices=("make", "judge"))
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help=f"by default all: {', '.join(PROBLEMS)}")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for the outputs of all files, about 3 GB")
    parser.add_argument("--files", action="store_true", help="print how every file is judged")
    options = parser.parse_args()
    folders = {name: options.folder / name for name in options.problems or PROBLEMS}
    if unknown := folders.keys() - PROBLEMS.keys():
        parser.error(f"unknown problems {', '.join(sorted(unknown))}; available: {', '.join(PROBLEMS)}")
    if options.step == "judge":
        return conclude(judge([*folders.values()], verbose=options.files), "measurement", options.result)
    for name, folder in folders.items():
        make(name, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
