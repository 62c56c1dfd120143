"""What `gauntlet run MODEL` chooses, beside the INT8 files that other tools make of the network: one race each.

    python benchmarks/exactness.py [NAME ...] [--folder FOLDER] [--rounds 10] [--set KEY=VALUE] [--result FILE.json]

The networks have published weights (published_networks.py) or are trained here on digits. All tools calibrate with the
same samples. The product gets others for its gates, too, and chooses in one command, with OpenVINO installed. Then all
files race together, and are compared with the model as it came on samples that no tool has seen. Models that are named
run again; without names, a run that was interrupted is continued.
"""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import numpy as np
import onnx
import published_networks
from networks import made
from peer_files import NNCF, TIMEOUT_S, Row, outputs, quantized_by_hand
from product_run import arguments, run_on_samples, timed, winner_of
from results import Figure, Measured, conclude

from flows.record.home import Home
from frameworks.torch.classifier_training import TorchTraining
from frameworks.torch.torchscript import TorchScript
from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.signature import Signature
from gauntlet.datasets import read_split
from gauntlet.datasets.digits import Digits
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.splits import require_labels
from gauntlet.onnx_model.graph import required_inputs
from gauntlet.problems.accuracy_comparison import compare_accuracy
from gauntlet.race.contender import Contender, Plan
from gauntlet.race.rows import rows
from gauntlet.race.table import run_race
from gauntlet.reporting.text_format import fixed, percent, speedup
from gauntlet.runtime.resources import usable_threads
from gauntlet.targets import OrtCpu, Target
from gauntlet.targets.environments import RuntimeEnvironment, folder, make, python
from wings.providers.openvino import OpenVino

TRAINED = {"ResNet-18, digits": ("resnet18", 4), "MobileNetV2, digits": ("torchvision/mobilenet_v2", 8)}
"""Architecture and epochs."""
SAMPLES = {"calibration": 64, "test": 128, "unseen": 64}
TORCH = "torch==2.14.1"
QUARK = RuntimeEnvironment(python=("amd-quark==0.13", "onnx==1.22.0", "onnxruntime==1.32.0", TORCH))
AIMET = RuntimeEnvironment(python=("aimet-onnx==2.42.0", "onnx==1.23.2", "onnxruntime==1.32.0", TORCH))
INT8 = OpenVino(precision="default")
PEERS: dict[str, tuple[str, RuntimeEnvironment, str, Target]] = {
    "NNCF, OpenVINO": ("nncf", NNCF, ".xml", INT8),
    "NNCF, full bias correction, OpenVINO": ("nncf-full", NNCF, ".xml", INT8),
    "NNCF, full bias correction": ("nncf-full", NNCF, ".onnx", OrtCpu()),
    "Quark": ("quark", QUARK, ".onnx", OrtCpu()),
    "AIMET": ("aimet", AIMET, ".onnx", OrtCpu()),
}
"""File -> tool of peer_quantizers.py, its environment, the file's suffix and where it runs."""
ORIGINAL, CHOSEN = "as it came", "chosen"


class Ratio(Frozen):
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


class Judged(Frozen):
    """One file of a network."""

    what: str
    over_original: Ratio
    over_chosen: Ratio
    sqnr_db: Number
    metric: str
    seconds: Number = 0.0
    """Of all processors, for the tool and its start; 0 for the original."""
    peak_mb: Number = 0.0


class Compared(Frozen):
    """All files of a network, by the tool; and why others made none."""

    files: dict[str, Judged]
    failed: dict[str, str]
    aa_deviation: Number

    @property
    def beaten_by(self) -> list[str]:
        """The peers whose file is proven faster than the chosen one, and more exact."""
        ours = float(self.files[CHOSEN].sqnr_db)
        peers = {name: file for name, file in self.files.items() if name not in (ORIGINAL, CHOSEN)}
        return [n for n, f in peers.items() if float(f.over_chosen.low) > 1 and float(f.sqnr_db) > ours]


def prepare(name: str, place: Path) -> tuple[Path, Array | None]:
    """Write the model and its samples, a file a split; return the model, and the labels of those not seen, if any."""
    model, data = place / f"{place.name}.onnx", place / "samples"
    data.mkdir(parents=True, exist_ok=True)
    if name in TRAINED:
        architecture, epochs = TRAINED[name]
        learning = TorchTraining(architecture=architecture, epochs=epochs, learning_rate=0.001)
        network = made(f"exactness-{place.name}", Digits(), learning, TorchScript())
        model.write_bytes(network.store.path(network.kept.model).read_bytes())
        splits = {n: read_split(network.store.path(a)) for n, a in network.kept.splits.items()}
        arrays = {n: {**splits[n].take(slice(None)), "labels": require_labels(splits[n])} for n in splits}
        arrays["unseen"] = {n: values[::2] for n, values in arrays["test"].items()}
        arrays["test"] = {n: values[1::2] for n, values in arrays["test"].items()}
    else:
        published = published_networks.NETWORKS[name]
        published_networks.fetch(published, model)
        [key] = [value.name for value in required_inputs(onnx.load(model).graph)]
        arrays = {
            split: {key: published_networks.inputs(published, count, seed)}
            for seed, (split, count) in enumerate(SAMPLES.items())
        }
    labels = arrays["unseen"].pop("labels", None)
    np.savez(place / "unseen.npz", allow_pickle=False, **arrays.pop("unseen"))
    for split, values in arrays.items():
        np.savez(data / f"{split}.npz", allow_pickle=False, **values)
    images = {n: v[: SAMPLES["calibration"]] for n, v in arrays["calibration"].items() if n != "labels"}
    np.savez(place / "calibration.npz", allow_pickle=False, **images)
    return model, labels


def peer_rows(model: Path, place: Path) -> tuple[dict[str, tuple[Row, float, float]], dict[str, str]]:
    """Return what others make of a model, with processor seconds and MB; and why the rest made nothing."""
    calibration, peers, failed = place / "calibration.npz", dict[str, tuple[Row, float, float]](), dict[str, str]()
    start = time.process_time()
    try:
        with np.load(calibration) as arrays:
            hand = quantized_by_hand(model, dict(arrays), place)
        peers |= {
            f"by hand, {n}": (Row(file=f, target=OrtCpu()), time.process_time() - start, 0) for n, f in hand.items()
        }
    except Exception as error:  # an expert's tools are not the product's: whatever they raise is their result
        failed["by hand"] = f"{type(error).__name__} {error}".splitlines()[0]
    for name, (tool, packages, suffix, target) in PEERS.items():
        file = place / f"{tool}{suffix}"
        environment = make(folder("openvino").with_name(tool.removesuffix("-full")), packages, print)
        script = str(Path(__file__).with_name("peer_quantizers.py"))
        command = [str(python(str(environment))), script, tool, str(model), str(calibration), str(file)]
        try:
            cost = timed(command, place / f"{tool}{suffix}.log")
        except StageError as error:
            failed[name] = str(error)
        else:
            peers[name] = (Row(file=file, target=target), *cost)
    return peers, failed


def compared(name: str, place: Path, home: Home, rounds: int, changes: list[str]) -> Compared:
    """Let the product and the others work on one network, race their files, and compare the outputs."""
    model, labels = prepare(name, place)
    report, cost = run_on_samples(model, home, [*changes, f"name=exactness-{place.name}"])
    original = Row(file=model, target=OrtCpu())
    files = {ORIGINAL: (original, 0.0, 0.0), CHOSEN: (winner_of(report, home), *cost)}
    peers, failed = peer_rows(model, place)
    unseen = place / "unseen.npz"
    answers = dict[str, NamedArrays]()
    for what, (row, *_) in [*files.items(), *peers.items()]:
        try:
            answers[what] = outputs(row.entry(), unseen, batch=1)
        except Exception as error:  # a peer's file that does not run is a result
            failed[what] = f"{type(error).__name__} {error}".splitlines()[0]
    files |= {what: peer for what, peer in peers.items() if what in answers}
    entries = {what: row.entry() for what, (row, *_) in files.items()}
    plan = Plan((1,), rounds, 50, usable_threads(), TIMEOUT_S)
    race = run_race(entries, plan, ORIGINAL, inputs=unseen)
    fp32 = next(c.artifact for c in report.candidates if c.name == "fp32" and c.artifact)
    signature = Signature.read(onnx.load(home.store.path(fp32), load_external_data=False))
    golden, judged = Golden({}, answers[ORIGINAL], labels), dict[str, Judged]()
    for what, (row, seconds, peak) in files.items():
        quality = compare_accuracy(golden, signature, {n: answers[what][n] for n in answers[ORIGINAL]})
        metric = quality.accuracy
        if metric is None and quality.expected_loss is not None:
            metric = quality.expected_loss.after
        chosen = f" {report.winner}" if what == CHOSEN else ""
        judged[what] = Judged(
            what=f"{what}{chosen} on {row.target.name}",
            over_original=Ratio.of(race.contenders[what], race.contenders[ORIGINAL]),
            over_chosen=Ratio.of(race.contenders[what], race.contenders[CHOSEN]),
            sqnr_db=quality.sqnr_db or 0.0,
            metric="" if metric is None else f"{quality.metric} {percent(float(metric))}",
            seconds=seconds,
            peak_mb=peak,
        )
    named = {what: why.replace(f"{place}/", "") for what, why in failed.items()}
    return Compared(files=judged, failed=named, aa_deviation=race.aa_deviation)


def lines(name: str, network: Compared) -> list[tuple[str, ...]]:
    """Return a network's rows of the table, the fastest first."""
    order = sorted(network.files, key=lambda what: -float(network.files[what].over_original.value))
    table = list[tuple[str, ...]]()
    for what in order:
        file = network.files[what]
        cost = tuple(f"{float(value):.0f}" if value else "" for value in (file.seconds, file.peak_mb))
        bold = f"**{file.what}**" if what == CHOSEN else file.what
        table.append((name, bold, str(file.over_original), fixed(float(file.sqnr_db), 1), file.metric, *cost))
    return table


def measured(networks: Mapping[str, Compared], rounds: int) -> Measured:
    """Return the result for all networks."""
    beaten = {name: network.beaten_by for name, network in networks.items()}
    failed = [f"{name}: {tool}: {why}" for name, network in networks.items() for tool, why in network.failed.items()]
    worst = max(float(network.aa_deviation) for network in networks.values())
    return Measured(
        claim="No other tool's INT8 file is proven faster, and more exact, than the chosen one",
        conditions=f"{rounds} rounds at batch 1, {usable_threads()} threads; SQNR without the mean, of the worst "
        "slice of an output, against the model as it came, on samples that no tool has seen; without labels the metric "
        "is to be expected from its own scores; processor seconds and MB of the largest process are of a tool, or "
        f"of `gauntlet run` from start to end; the control at most {worst:.1%} apart. "
        + (f"Without a file: {'; '.join(failed)}" if failed else ""),
        figures=(
            Figure.at_least("networks", len(networks), 10),
            Figure.at_least("without a faster and more exact file", sum(not tools for tools in beaten.values()),
                            len(networks), goal="all"),
        ),
        columns=("network", "file", "over the original", "SQNR, dB", "metric", "processor s", "MB"),
        rows=[line for name, network in networks.items() for line in lines(name, network)],
    )  # fmt: skip


def main() -> int:
    """Run, print, write; 1 when a goal is missed."""
    names = [*published_networks.NETWORKS, *TRAINED]
    options, home = arguments(__doc__, names, Path("exactness"), rounds=10)
    networks = dict[str, Compared]()
    for name in options.names or names:
        place = (options.folder / name.lower().replace(",", "").replace(" ", "-")).resolve()
        kept = place / "compared.json"
        if options.names or not kept.exists():
            place.mkdir(parents=True, exist_ok=True)
            kept.write_text(compared(name, place, home, options.rounds, options.set).model_dump_json(indent=1))
        networks[name] = Compared.model_validate_json(kept.read_bytes())
        print(json.dumps({"network": name, "beaten by": networks[name].beaten_by}), flush=True)
    return conclude(measured(networks, options.rounds), "peers", options.result)


if __name__ == "__main__":
    sys.exit(main())
