"""What the product chooses, beside what its user would pick instead: one interleaved race, a process each.

    python benchmarks/peers.py [--network resnet18] [--targets ort-cpu,openvino-f32,ort-openvino-f32] [--prepare]

First everything is made, once, and kept (`--prepare` stops there): the network (see networks.py), the product's
candidates, and the peers. NNCF and Olive quantize in environments of their own, installed beside that of OpenVINO. Then
the product races its candidates on all targets and chooses the fastest at each batch size, and these race against the
peers. Prints a table in Markdown: ratios to ONNX Runtime's FP32 with their 95 % intervals, and signal to noise
against the answers of the framework that the network was trained in.
"""

import argparse
import dataclasses
import math
import os
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import onnx
from networks import CACHE, Network, made
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from pydantic import Field
from results import Figure, add_result_option, write_result

from gauntlet.benchmarking.contender import Contender, RaceEntry, RacePlan
from gauntlet.benchmarking.race import CONTROL, race
from gauntlet.benchmarking.rows import rows
from gauntlet.benchmarking.target_comparison import compare_targets
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.datasets import read_split
from gauntlet.datasets.digits import Digits
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.npz_arrays import NpzArrays
from gauntlet.datasets.splits import SPLITS
from gauntlet.metrics.error_metrics import sqnr_db
from gauntlet.reporting.text_format import fixed, milliseconds, number, percent, size, speedup
from gauntlet.runtime.resources import usable_threads
from gauntlet.runtime.worker_client import WorkerClient, WorkerFailed
from gauntlet.targets import (
    KerasCompiled,
    KerasEager,
    OpenVino,
    OrtCpu,
    OrtOpenVino,
    Target,
    TorchCompiled,
    TorchEager,
    by_name,
)
from gauntlet.targets.environments import RuntimeEnvironment, folder, install, make, python
from tasks.accuracy import AccuracyConfig, accuracy
from tasks.export.tf2onnx import Tf2Onnx
from tasks.export.torchscript import TorchScript
from tasks.optimize import optimize
from tasks.optimize.chain import Chain
from tasks.quantize import quantize
from tasks.quantize.static import StaticInt8
from tasks.train.keras import KerasTraining
from tasks.train.torch import TorchTraining

NNCF = RuntimeEnvironment(python=("nncf==3.4.0", "openvino==2026.4.1"))
OLIVE = RuntimeEnvironment(
    python=("olive-ai==0.13.0", "onnxruntime==1.31.1", "requests==2.34.2")
)  # it does not name the last
REFERENCE = "ONNX Runtime, FP32"
PICTURES = {"train": 16, "validation": 16, "calibration": 32, "test": 64}
RECIPES = (StaticInt8(), StaticInt8(qdq_placement="inputs"))
"""What is fast in ONNX Runtime, and in OpenVINO. Others differ from these in accuracy, not in speed."""
TIMEOUT_S = 300
UNTRAINED = AccuracyConfig(max_accuracy_drop=1, min_sqnr_db=20)


class Row(Frozen):
    """A file on a target."""

    file: Path
    target: Target
    sqnr_db: Number = Field(math.nan, description="of the answers, against those of the network's own framework")
    accuracy: Number = Field(math.nan, description="share of right answers")

    @property
    def size_bytes(self) -> int:
        """Of all that is shipped."""
        weights = self.file.with_suffix(".bin")
        return self.file.stat().st_size + (weights.stat().st_size if weights.is_file() else 0)

    def entry(self) -> RaceEntry:
        """Return it as the race takes it."""
        return RaceEntry(self.file, self.target.command(), self.target.options(), self.target.name)


class Prepared(Frozen):
    """What is raced, by name."""

    candidates: dict[str, Path]
    peers: dict[str, Row]


def network_of(name: str) -> tuple[Network, AccuracyConfig]:
    """Return a network, and what its candidates may cost; nothing is known of the accuracy of one that saw noise."""
    if name == "resnet18":
        learning = TorchTraining(architecture=name, epochs=2, learning_rate=0.001)
        return made(f"peers-{name}", Digits(), learning, TorchScript()), AccuracyConfig()
    if name == "efficientnetb0":
        return made(f"peers-{name}", Digits(layout="NHWC"), KerasTraining(epochs=3), Tf2Onnx()), AccuracyConfig()
    learning = TorchTraining(architecture=f"torchvision/{name}", epochs=1, batch_size=8, learning_rate=1e-5)
    return made(f"peers-{name}", noise(), learning, TorchScript()), UNTRAINED


def noise() -> NpzArrays:
    """Return pictures of 224 pixels with nothing on them, of ten classes."""
    place, rng = CACHE / "noise-224", np.random.default_rng(0)
    place.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        if not (place / f"{split}.npz").is_file():
            images = rng.standard_normal((PICTURES[split], 3, 224, 224), dtype=np.float32)
            np.savez(place / f"{split}.npz", input=images, labels=np.arange(PICTURES[split]) % 10)
    return NpzArrays(path=place, labels=tuple("0123456789"))


def candidates(network: Network, limits: AccuracyConfig) -> dict[str, Path]:
    """Return the product's own: the FP32 model, its graph passes, and the recipes that pass the gate."""
    kept = network.kept
    found: dict[str, Artifact] = {"fp32": kept.model}
    passed = optimize(Chain(), network.workspace("passes"), model=kept.model, golden=kept.golden)
    found["passes"] = passed.artifacts["model"]
    ranges = network.calibrated(RECIPES[0].calibration_method)
    for recipe in RECIPES:
        made_int8 = quantize(recipe, network.workspace(recipe.name), model=kept.model, **ranges)
        found[recipe.name] = made_int8.artifacts["model"]
    judged = network.workspace("accuracy")
    for name, model in [*found.items()][1:]:
        report = accuracy(limits, judged, model=model, golden=kept.golden, test=kept.splits["test"])
        for failure in (check for check in report.checks if check.blocks):
            print(f"not chosen: {name}: {failure}")
            found.pop(name, None)
    return {name: network.store.path(model) for name, model in found.items()}


def choose(network: Network, models: dict[str, Path], targets: list[Target], plan: RacePlan) -> dict[str, Row]:
    """Let the product race its candidates on all targets; return the fastest at each batch size."""
    samples = images(network, "test", max(plan.batch_sizes))
    with tempfile.TemporaryDirectory() as place:
        found = compare_targets(models, targets, samples, Path(place), plan, say=lambda text: print(text, flush=True))
    for pair in found.pairs:
        told = "; ".join(f"batch {p.batch} {milliseconds(p.middle_ms)}" for p in pair.latency)
        print(f"  {pair.name}: {told or f'{pair.status}: {pair.reason}'}")
    by_target = {target.name: target for target in targets}
    chosen = {}
    for place, _ in enumerate(plan.batch_sizes):
        best = min((p for p in found.pairs if p.latency), key=lambda p: p.latency[place].middle_ms)
        chosen[f"**chosen: {best.name}**"] = Row(file=models[best.model], target=by_target[best.target])
    return judged(chosen, network)


class OneByOne(CalibrationDataReader):  # type: ignore[misc]
    """Calibration images as `quantize_static` reads them."""

    def __init__(self, samples: dict[str, np.ndarray]) -> None:
        (self.name, self.images) = next(iter(samples.items()))
        self.rest: Iterator[np.ndarray] = iter(self.images)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next one."""
        image = next(self.rest, None)
        return None if image is None else {self.name: image[None]}


def peers(network: Network, tools: list[str]) -> dict[str, Row]:
    """Return what users pick, as the tools' guides show it; `tools` are those that are not in this environment."""
    model, out = network.store.path(network.kept.model), network.workspace("peers").folder
    calibration = images(network, "calibration", 128)
    np.savez(out / "calibration.npz", **calibration)
    quant_pre_process(model, out / "prepared.onnx")
    quantize_static(out / "prepared.onnx", out / "defaults.onnx", OneByOne(calibration))
    careful = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "per_channel": True}
    quantize_static(out / "prepared.onnx", out / "u8s8.onnx", OneByOne(calibration), **careful)
    simplified(model, out / "onnxsim.onnx")
    found = {
        REFERENCE: Row(file=model, target=OrtCpu()),
        "ONNX Runtime, FP32 after onnxsim": Row(file=out / "onnxsim.onnx", target=OrtCpu()),
        "`quantize_static`, its defaults": Row(file=out / "defaults.onnx", target=OrtCpu()),
        "`quantize_static`, U8S8, in ONNX Runtime": Row(file=out / "u8s8.onnx", target=OrtCpu()),
        "`quantize_static`, U8S8, in OpenVINO": Row(file=out / "u8s8.onnx", target=OpenVino(precision="default")),
        "`quantize_static`, U8S8, in ORT's OpenVINO provider": Row(file=out / "u8s8.onnx", target=OrtOpenVino()),
        "OpenVINO, f32": Row(file=model, target=OpenVino(precision="f32")),
        "OpenVINO, its default": Row(file=model, target=OpenVino(precision="default")),
        "ORT's OpenVINO provider, f32": Row(file=model, target=OrtOpenVino()),
    }
    foreign = {
        "OpenVINO + NNCF INT8": ("nncf", NNCF, "nncf_openvino.py", ".xml", OpenVino(precision="default")),
        "Olive, static quantization": ("olive", OLIVE, "olive_static.py", ".onnx", OrtCpu()),
    }
    for name, (tool, wanted, script, suffix, target) in foreign.items():
        if tool not in tools:
            continue
        environment = make(folder("openvino").with_name(tool), wanted, print)
        file = out / f"{tool}{suffix}"
        command = (python(str(environment)), Path(__file__).with_name(script), model, out / "calibration.npz", file)
        quiet = os.environ | {"OLIVE_DISABLE_TELEMETRY": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=quiet)
        if done.returncode:
            print(f"{name}: failed: {' '.join((done.stderr or done.stdout).strip().splitlines()[-2:])}")
        else:
            found[name] = Row(file=file, target=target)
    frameworks: dict[str, Target] = {
        "PyTorch, eager": TorchEager(),
        "PyTorch, compiled": TorchCompiled(),
        "Keras, eager": KerasEager(),
        "Keras, compiled (XLA)": KerasCompiled(),
        "Keras, `tf.function`": KerasCompiled(xla=False),
    }
    source = network.kept.source and network.store.path(network.kept.source)
    found |= {n: Row(file=source, target=t) for n, t in frameworks.items() if source and not t.rejection_reason(source)}
    return judged(found, network)


def simplified(model: Path, path: Path) -> None:
    """Write what onnxsim makes of a model."""
    import onnxsim

    proto, right = onnxsim.simplify(onnx.load(model))
    if not right:
        raise StageError(f"onnxsim changed what {model.name} computes")
    onnx.save(proto, path)


def images(network: Network, split: str, count: int | None = None) -> dict[str, np.ndarray]:
    """Return the first images of a split, or all, by input."""
    taken = read_split(network.store.path(network.kept.splits[split])).take(slice(0, count))
    return {name: np.asarray(values, dtype=np.float32) for name, values in taken.items()}


def judged(found: dict[str, Row], network: Network) -> dict[str, Row]:
    """Return the rows that answer, with the quality of their answers to the test images, each on its own target."""
    golden, alive = Golden.load(network.store.path(network.kept.golden)), {}
    inputs = network.workspace("race").folder / "test.npz"
    np.savez(inputs, **images(network, "test"))
    for name, row in found.items():
        try:
            scores = answers(row.entry(), inputs)
        except WorkerFailed as error:
            print(f"{name}: {error}")
            continue
        right = float(np.mean(scores.argmax(axis=1) == golden.labels))
        noise_db = sqnr_db(scores, next(iter(golden.test_outputs.values())))
        alive[name] = row.replace(sqnr_db=noise_db, accuracy=right)
    return alive


def answers(entry: RaceEntry, inputs: Path) -> np.ndarray:
    """Return the first output for all inputs, shape (n, ...)."""
    with WorkerClient(entry.command) as worker, tempfile.TemporaryDirectory() as place:
        worker.load(entry.model, inputs, usable_threads(), TIMEOUT_S, entry.options)
        path = Path(place) / "answers.npz"
        names = worker.request({"do": "write_outputs", "batch": 8, "path": str(path)}, TIMEOUT_S)["outputs"]
        with np.load(path) as file:
            return np.asarray(file[names[0]])


def table(
    found: dict[str, Row], measured: dict[str, Contender], trained: bool
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Print the rows, the fastest at the first batch size first; return the columns and the rows."""
    base = measured[REFERENCE]
    sizes = [*base.round_medians_ms]
    heads = [head for batch in sizes for head in (f"batch {batch}, ms", f"batch {batch}, x FP32")]
    columns = ("file and runtime", *["accuracy"] * trained, "SQNR, dB", "size", *heads)
    print("|", " | ".join(columns), "|")
    print("|---|" + "---:|" * (len(columns) - 1))
    lines = []
    alive = [name for name in found if not measured[name].failure]
    for name in sorted(alive, key=lambda n: float(np.median(measured[n].round_medians_ms[sizes[0]]))):
        one = found[name]
        cells = [percent(one.accuracy)] * trained + [fixed(one.sqnr_db, 1), size(one.size_bytes)]
        for row in rows(measured[name], base, resolution=0):
            cells += [fixed(row.median_ms, 2), speedup(row.speedup, row.speedup_low, row.speedup_high)]
        lines.append((name, *cells))
        print("|", " | ".join(lines[-1]), "|", flush=True)
    for name in found:
        if measured[name].failure:
            print(f"{name}: {measured[name].failure}")
    return columns, lines


def main() -> None:
    """Make, choose, race, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("resnet18", "resnet50", "mobilenet_v3_large", "efficientnetb0")
    parser.add_argument("--network", default="resnet18", choices=names)
    parser.add_argument("--targets", default="ort-cpu,openvino-f32,ort-openvino-f32", help="that the product has")
    parser.add_argument("--prepare", action="store_true", help="make everything anew, and stop")
    parser.add_argument("--tools", nargs="*", default=["nncf", "olive"], help="that get an environment of their own")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--block-ms", type=float, default=60)
    add_result_option(parser)
    options = parser.parse_args()
    install("openvino", print)
    network, limits = network_of(options.network)
    note = network.folder / "prepared.json"
    if options.prepare or not note.is_file():
        ready = Prepared(candidates=candidates(network, limits), peers=peers(network, options.tools))
        note.write_text(ready.model_dump_json())
    if options.prepare:
        return
    prepared = Prepared.model_validate_json(note.read_bytes())
    found = prepared.peers
    plan = RacePlan(
        batch_sizes=tuple(options.batch), rounds=options.rounds, block_ms=options.block_ms,
        threads=usable_threads(), timeout_s=TIMEOUT_S,
    )  # fmt: skip
    first = dataclasses.replace(plan, rounds=max(6, options.rounds // 2), early_stopping=True)
    targets = [by_name(name) for name in options.targets.split(",")]
    chosen = choose(network, prepared.candidates, targets, first)
    inputs = network.workspace("race").folder / "inputs.npz"
    np.savez(inputs, **images(network, "test", max(plan.batch_sizes)))
    result = race(
        {n: row.entry() for n, row in (found | chosen).items()} | {CONTROL: found[REFERENCE].entry()}, inputs, plan
    )
    measured = result.contenders
    print(f"\n{options.network}, {datetime.now(UTC):%Y-%m-%d}, {plan.threads} threads, {plan.rounds} rounds")
    load = result.machine
    print(f"load {load.load_average}, other work {number(load.other_load_cores, 2)} cores\n")
    columns, lines = table(found | chosen, measured, limits is not UNTRAINED)
    control = rows(measured[CONTROL], measured[REFERENCE], resolution=0)
    beside = ", ".join(speedup(r.speedup, r.speedup_low, r.speedup_high) for r in control)
    print("\nFP32 beside itself:", beside)
    figures = []
    for place, batch in enumerate(plan.batch_sizes):
        times = {n: float(np.median(c.round_medians_ms[batch])) for n, c in measured.items() if not c.failure}
        ours, best = min(chosen, key=times.__getitem__), min(found.keys() & times, key=times.__getitem__)
        row = rows(measured[ours], measured[best], resolution=0)[place]
        told = speedup(row.speedup, row.speedup_low, row.speedup_high)
        print(f"batch {batch}: {ours} against the fastest peer ({best}): {told}")
        interval = {"low": round(row.speedup_low, 2), "high": round(row.speedup_high, 2)}
        goal = {"goal": "at least as fast as the best peer", "met": row.speedup_high >= 1}
        name = f"{ours.strip('*')} over {best}, batch {batch}"
        figures.append(Figure(name=name, value=round(row.speedup, 2), **interval, **goal))
    if options.result:
        write_result(
            options.result,
            topic="peers",
            claim=f"{options.network}: at least as fast as what users would pick",
            conditions=f"{plan.rounds} rounds, {plan.threads} threads, one process a row; SQNR against the framework's "
            f"outputs; {number(result.machine.other_load_cores, 2)} cores of other work; FP32 beside itself: {beside}",
            figures=figures,
            columns=columns,
            rows=lines,
        )


if __name__ == "__main__":
    main()
