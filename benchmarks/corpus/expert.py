"""What `gauntlet run MODEL` chooses, beside what an expert makes of the same file by hand: one interleaved race each.

    python benchmarks/corpus/expert.py [NAME ...] [--folder FOLDER] [--rounds 16] [--shared] [--result FILE.json]

By hand means: opset 17, constants lifted to initializers, `quantize_static` per channel with 8-bit and with 7-bit
weights, each judged by the limits that the product judges its own candidates by; the fastest of those within them and
the file as it came, in a first race, and of equally fast ones the most exact. Both sides calibrate on the same crops of
photographs and are judged on the same other ones. Then both files race, with the file as it came and that once more as
a control. Models that are named run again; without names, a run that was interrupted is continued.
"""

import dataclasses
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import numpy as np
import onnx
from exported_models import EXPORTED

from flows.record.home import Home
from flows.servers.local_servers import prefect_server
from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.run_report import RunReport
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import Golden
from gauntlet.problems.accuracy_checks import accuracy_checks
from gauntlet.problems.accuracy_comparison import AccuracyComparison, compare_accuracy
from gauntlet.race.contender import Contender, Plan
from gauntlet.race.rows import rows
from gauntlet.race.table import CONTROL, run_race
from gauntlet.reporting.text_format import number, speedup
from gauntlet.runtime.resources import usable_threads
from gauntlet.targets.ort import OrtCpu
from tasks.accuracy import AccuracyConfig

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the folder of the benchmarks' shared modules
from by_hand import quantized_by_hand
from peer_files import TIMEOUT_S, Row, first_output
from product_run import SHARED, run_product, settings, winner_of
from results import Figure, Measured, conclude, script_parser

RESCALING = ("tf2onnx-EfficientNetB0-opset15",)
"""Models that take pixels from 0 to 255."""
SAMPLES = {"calibration": 64, "test": 128}
AS_IT_CAME = "as it came"
CHOICE_ROUNDS = 8
TOLERANCE_DB = 0.5
TIE = 0.02
RACE = ("benchmark.batch_sizes=[1]", "benchmark.profile=false")
"""Settings of `gauntlet run`: the files are compared at batch 1."""
COLUMNS = ("model", "by hand", "over FP32", "SQNR, dB", "chosen", "over FP32", "SQNR, dB", "chosen over by hand")


class Speed(Frozen):
    """A speed-up with its 95 % interval."""

    value: Number
    low: Number
    high: Number

    @classmethod
    def of(cls, contender: Contender, base: Contender) -> Self:
        """Return a contender's speed over another's in the same rounds."""
        [row] = rows(contender, base, resolution=0)
        return cls(value=row.speedup, low=row.speedup_low, high=row.speedup_high)

    def __str__(self) -> str:
        return speedup(self.value, self.low, self.high)


class Side(Frozen):
    """One side's file."""

    file: str
    over_fp32: Speed
    sqnr_db: Number


class Duel(Frozen):
    """One model, by hand and by the product."""

    model: str
    by_hand: Side
    chosen: Side
    ratio: Speed
    control: Speed
    other_load_cores: Number
    rejected_by_hand: tuple[str, ...] = ()

    @property
    def is_as_fast(self) -> bool:
        """Whether the chosen file is not proven slower."""
        return self.ratio.high >= 1

    @property
    def is_as_exact(self) -> bool:
        """Whether the chosen file has no more noise than one made by hand, up to the tolerance.

        Where nothing made by hand is both within the limits and faster than the file as it came, there is none.
        """
        return self.by_hand.file == AS_IT_CAME or self.chosen.sqnr_db >= self.by_hand.sqnr_db - TOLERANCE_DB


def write_samples(name: str, model: Path, folder: Path) -> dict[str, Path]:
    """Write crops of scikit-learn's two photographs as the model takes them, a file a split."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    value = onnx.load(model, load_external_data=False).graph.input[0]
    shape = [axis.dim_value for axis in value.type.tensor_type.shape.dim]
    size, nchw = shape[2], shape[1] == 3
    photographs, rng = [Image.fromarray(pixels) for pixels in load_sample_images().images], np.random.default_rng(0)
    files = {}
    for split, count in SAMPLES.items():
        images = np.empty((count, size, size, 3), np.float32)
        for place in range(count):
            photograph = photographs[rng.integers(len(photographs))]
            side = int(rng.integers(size, min(photograph.size)))
            left, top = (int(rng.integers(extent - side)) for extent in photograph.size)
            images[place] = photograph.resize((size, size), box=(left, top, left + side, top + side))
        images = images if name in RESCALING else (images / 255 - 0.5) / 0.25
        files[split] = folder / f"{split}.npz"
        np.savez(files[split], allow_pickle=False, **{value.name: images.transpose(0, 3, 1, 2) if nchw else images})
    return files


class Judge:
    """Compares the outputs of files with those of the model as it came, by the limits of a run."""

    def __init__(self, report: RunReport, home: Home, reference: Row, test: Path) -> None:
        fp32 = next(c.artifact for c in report.candidates if c.name == "fp32")
        assert fp32 is not None  # the reference of a run that passed has a file
        self.signature = Signature.read(onnx.load(home.store.path(fp32), load_external_data=False))
        self.limits, self.test = AccuracyConfig.model_validate(report.config["accuracy"]), test
        self.golden = Golden({}, self._outputs(reference))

    def compare(self, row: Row) -> AccuracyComparison:
        """Return how a file compares with the model as it came."""
        return compare_accuracy(self.golden, self.signature, self._outputs(row))

    def rejection(self, found: AccuracyComparison) -> str:
        """Return the first limit that a file misses; empty where it keeps all."""
        checks = accuracy_checks(self.limits, found)
        return next((f"{check.name} {check.value:.3g}" for check in checks if check.blocks), "")

    def _outputs(self, row: Row) -> dict[str, Array]:
        return {self.signature.outputs[0].name: first_output(row.entry(), self.test)}


def compared(name: str, folder: Path, home: Home, rounds: int, *, shared: bool) -> Duel:
    """Let the product and the expert work on one model, and race what they made."""
    place = folder / name
    (place / "samples").mkdir(parents=True, exist_ok=True)
    model = place / f"{name}.onnx"
    if not model.exists():
        EXPORTED[name](model)
    samples = write_samples(name, model, place / "samples")
    report = run_product(
        home,
        place / "run.log",
        str(model),
        "--data",
        str(place / "samples"),
        *settings(*RACE, *(SHARED if shared else ()), f"benchmark.rounds={rounds}"),
    )
    reference, chosen = Row(file=model, target=OrtCpu()), winner_of(report, home)
    judge = Judge(report, home, reference, samples["test"])
    plan = Plan((1,), rounds, 50, 1 if shared else usable_threads(), TIMEOUT_S, restarts=not shared)
    with np.load(samples["calibration"]) as arrays:
        by_hand, rejected = expert_choice(reference, judge, dict(arrays), place, plan)
    (label, file), exact = next(iter(by_hand.items())), judge.compare(chosen).sqnr_db
    entries = {n: row.entry() for n, row in ((AS_IT_CAME, reference), ("by hand", file), ("chosen", chosen))}
    result = run_race(entries, plan, AS_IT_CAME, inputs=samples["test"])
    measured = result.contenders
    base = measured[AS_IT_CAME]
    hand_db = judge.compare(file).sqnr_db
    return Duel(
        model=name,
        by_hand=Side(file=label, over_fp32=Speed.of(measured["by hand"], base), sqnr_db=known(hand_db)),
        chosen=Side(file=str(report.winner), over_fp32=Speed.of(measured["chosen"], base), sqnr_db=known(exact)),
        ratio=Speed.of(measured["chosen"], measured["by hand"]),
        control=Speed.of(measured[CONTROL], base),
        other_load_cores=result.machine.other_load_cores,
        rejected_by_hand=rejected,
    )


def known(sqnr_db: float | None) -> float:
    """Return a signal-to-noise ratio that a model with float outputs has."""
    if sqnr_db is None:
        raise ValueError("the model has no float output")
    return sqnr_db


def expert_choice(
    reference: Row, judge: Judge, calibration: NamedArrays, folder: Path, plan: Plan
) -> tuple[dict[str, Row], tuple[str, ...]]:
    """Return the expert's fastest file within the limits by its name, or the file as it came; and those beyond them."""
    rejected, kept, exact = [], {AS_IT_CAME: reference}, {AS_IT_CAME: math.inf}
    for name, file in quantized_by_hand(reference.file, calibration, folder).items():
        row = Row(file=file, target=OrtCpu())
        found = judge.compare(row)
        if reason := judge.rejection(found):
            rejected.append(f"{name}: {reason}")
        else:
            kept[name], exact[name] = row, known(found.sqnr_db)
    if len(kept) == 1:
        return kept, tuple(rejected)
    short = dataclasses.replace(plan, rounds=CHOICE_ROUNDS)
    measured = run_race(
        {n: row.entry() for n, row in kept.items()}, short, next(iter(kept)), inputs=judge.test, control=False
    ).contenders
    speeds = {n: float(Speed.of(measured[n], measured[AS_IT_CAME]).value) for n in kept}
    tied = [n for n in kept if speeds[n] > (1 - TIE) * max(speeds.values())]
    best = max(tied, key=exact.__getitem__)
    return {best: kept[best]}, tuple(rejected)


def line(duel: Duel) -> tuple[str, ...]:
    """Return a model's line of the table."""
    sides = [(side.file, str(side.over_fp32), f"{float(side.sqnr_db):.1f}") for side in (duel.by_hand, duel.chosen)]
    return (duel.model, *sides[0], *sides[1], str(duel.ratio))


def measured(duels: Mapping[str, Duel], rounds: int, *, shared: bool) -> Measured:
    """Return the result for all models."""
    fast, exact = (sum(one) for one in zip(*((d.is_as_fast, d.is_as_exact) for d in duels.values()), strict=True))
    ratios = np.array([float(duel.ratio.value) for duel in duels.values()])
    loads = [float(duel.other_load_cores) for duel in duels.values()]
    alone = "one thread, one process a file, 600 s for the search in place of 60; calls longer than a time slice wait, "
    alone += "which inflates large ratios to FP32"
    how = alone if shared else f"{usable_threads()} threads, one process a file and round"
    rejected = [f"{duel.model}: {reason}" for duel in duels.values() for reason in duel.rejected_by_hand]
    beyond = f" Made by hand and beyond the limits: {'; '.join(rejected)}." if rejected else ""
    return Measured(
        claim="What is chosen without a configuration is as fast and as exact as an expert's file",
        conditions=f"{rounds} rounds at batch 1, {how}; random weights, crops of photographs; "
        f"SQNR without the mean, against the file as it came; {number(min(loads), 2)} to {number(max(loads), 2)} cores "
        f"of other work during the races. As exact: at most {TOLERANCE_DB} dB less than a "
        f"file made by hand, where one is within the limits and faster.{beyond}",
        figures=(
            Figure.at_least("models", len(duels), 10),
            Figure.at_least("at least as fast", fast, len(duels), goal="all"),
            Figure.at_least("at least as exact", exact, len(duels), goal="all"),
            Figure(name="chosen over by hand, median", value=round(float(np.median(ratios)), 2)),
            Figure(name="chosen over by hand, least", value=round(float(ratios.min()), 2)),
        ),
        columns=COLUMNS,
        rows=[line(duel) for duel in duels.values()],
    )


def main() -> int:
    """Run, print, write; 1 when a goal is missed."""
    parser = script_parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"by default all: {', '.join(EXPORTED)}")
    parser.add_argument("--folder", type=Path, default=Path("corpus"), help="for the models, the runs and the outcomes")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--shared", action="store_true", help="other work runs: one thread, and one process a file")
    options = parser.parse_args()
    duels, home = dict[str, Duel](), Home((options.folder / "home").resolve())
    with prefect_server(home):  # shared by all runs
        for name in options.names or EXPORTED:
            kept = options.folder / name / "duel.json"
            if options.names or not kept.exists():
                kept.parent.mkdir(parents=True, exist_ok=True)
                duel = compared(name, options.folder, home, options.rounds, shared=options.shared)
                kept.write_text(duel.model_dump_json(indent=1))
            duels[name] = Duel.model_validate_json(kept.read_bytes())
            print("|", " | ".join(line(duels[name])), "|", flush=True)
    return conclude(measured(duels, options.rounds, shared=options.shared), "corpus", options.result)


if __name__ == "__main__":
    sys.exit(main())
