"""What calibration costs beside ONNX Runtime's plain use of its calibrators: seconds, peak memory, and the ranges.

    python benchmarks/calibration.py [--model resnet18|resnet50] [--images 96] [--method entropy] [--rounds 3]

`ours` is the stage's way: one chunk of images at a time. `ort` gives its calibrator all images at once, as
`quantize_static` does, with the options of ours (entropy with 2048 bins, percentile with `symmetric=False`). It keeps
all activations of all images: about 0.13 GB an image of ResNet-50.

Each calibration runs in a process of its own, in turns. ResNet-18 gets scikit-learn's digits at 32x32 (repeated where
more are asked for), ResNet-50 random images at 224x224, made as they are asked for. The weights are random, which
changes neither cost.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 8
SIDES = {"resnet18": 32, "resnet50": 224}
COLUMNS = ("calibrator", "seconds", "CPU, s", "peak, GB", "ranges unlike the first's")
Ranges = dict[str, list[float]]


@dataclass(frozen=True)
class Images:
    """A split whose samples are made when they are taken, the same ones every time."""

    count: int
    digits: np.ndarray | None = None
    labels: None = None

    def __len__(self) -> int:
        return self.count

    def take(self, indices: slice) -> dict[str, np.ndarray]:
        """Return some images, shape (n, 3, side, side), about normal."""
        numbers = range(self.count)[indices]
        if self.digits is not None:
            return {"input": self.digits[np.array(numbers) % len(self.digits)]}
        rough = [np.random.default_rng(n).standard_normal((3, 28, 28), dtype=np.float32) for n in numbers]
        return {"input": np.kron(np.stack(rough), np.ones((8, 8), np.float32))}


def images_of(model: str, count: int) -> Images:
    """Return the images for a model."""
    if model == "resnet50":
        return Images(count)
    from gauntlet.datasets.digits import Digits

    train = Digits().load().splits["train"]
    return Images(count, train.take(slice(0, len(train)))["input"])


def export(model: str, folder: Path) -> Path:
    """Write the network with random weights, prepared for quantization."""
    import torch

    from gauntlet.calibration.preparation import prepare_for_quantization
    from gauntlet.frameworks.torch.architectures import NamedArchitecture

    torch.manual_seed(0)
    name, classes = ("resnet18", 10) if model == "resnet18" else (f"torchvision/{model}", 1000)
    side = SIDES[model]
    network = NamedArchitecture(architecture=name, channels=3, height=side, width=side, classes=classes).build().eval()
    names = {
        "input_names": ["input"],
        "output_names": ["logits"],
        "dynamic_axes": {"input": {0: "n"}, "logits": {0: "n"}},
    }
    torch.onnx.export(network, (torch.zeros(1, 3, side, side),), folder / "model.onnx", **names, dynamo=False)
    prepare_for_quantization(folder / "model.onnx", folder / "prepared.onnx")
    return folder / "prepared.onnx"


def calibrate_ours(prepared: Path, images: Images, kind: str) -> Ranges:
    """Calibrate as the stage does, the ranges after half of the images included, for which its audit asks."""
    from gauntlet.calibration.activation_statistics import collect_statistics, open_calibrator
    from gauntlet.calibration.entropy import Entropy
    from gauntlet.calibration.minmax import MinMax
    from gauntlet.calibration.percentile import Percentile
    from gauntlet.core.artifact import Store
    from gauntlet.core.workspace import Workspace

    method = {"minmax": MinMax(), "entropy": Entropy(), "percentile": Percentile()}[kind]
    out = Workspace(Store(prepared.parent), prepared.parent)
    with tempfile.TemporaryDirectory() as folder:
        calibrator = open_calibrator(prepared, Path(folder))
        seen = collect_statistics(out, calibrator, images, len(images), with_counts=method.counts)
    after = {n: {name: [*map(float, method.range_of(one))] for name, one in seen.after[n].items()} for n in seen.after}
    return after[len(images)]


def ort(prepared: Path, images: Images, kind: str) -> Ranges:
    """Calibrate as `quantize_static` does."""
    from onnxruntime.quantization import CalibrationMethod
    from onnxruntime.quantization.calibrate import create_calibrator

    class Reader:
        def __init__(self) -> None:
            self.feeds = (images.take(slice(n, n + BATCH)) for n in range(0, len(images), BATCH))

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.feeds, None)

    kinds = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
    options = {"entropy": {"num_bins": 2048}, "percentile": {"symmetric": False}, "minmax": {}}[kind]
    with tempfile.TemporaryDirectory() as folder:
        augmented, method = str(Path(folder) / "augmented.onnx"), CalibrationMethod[kinds[kind]]
        calibrator = create_calibrator(prepared, None, augmented, method, extra_options=options)
        calibrator.collect_data(Reader())
        data = calibrator.compute_data()
    return {name: [float(np.squeeze(end)) for end in one.range_value] for name, one in data.items()}


def measure(calibrator: str, kind: str, model: str, count: int, prepared: Path) -> None:
    """Calibrate in this process, and print its seconds, its peak memory, and the ranges."""
    images = images_of(model, count)
    start = time.perf_counter()
    ranges = (calibrate_ours if calibrator == "ours" else ort)(prepared, images, kind)
    seconds = time.perf_counter() - start
    # Not getrusage's: that of a child begins with the memory of the process that started it.
    status = Path("/proc/self/status").read_text()
    peak = 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    print("\n" + json.dumps({"seconds": seconds, "cpu": time.process_time(), "peak": peak, "ranges": ranges}))


def furthest(one: Ranges, other: Ranges) -> tuple[int, float]:
    """Return how many ranges differ, and the largest distance over a range's width."""
    apart = [
        max(abs(a - b) for a, b in zip(one[n], other[n], strict=True)) / ((one[n][1] - one[n][0]) or 1) for n in one
    ]
    return sum(distance > 0 for distance in apart), max(apart)


def main() -> None:
    """Measure in turns and print the table."""
    from results import add_result_option, write_result  # not in the processes whose memory is measured

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SIDES, default="resnet18")
    parser.add_argument(
        "--images", type=int, default=96, help="a multiple of 8: ORT's histograms take no smaller batch"
    )
    parser.add_argument("--method", choices=("minmax", "entropy", "percentile"), default="entropy")
    parser.add_argument("--calibrators", choices=("ours", "ort"), nargs="+", default=["ours", "ort"])
    parser.add_argument("--rounds", type=int, default=3)
    add_result_option(parser)
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in arguments.calibrators}
    with tempfile.TemporaryDirectory() as folder:
        prepared = export(arguments.model, Path(folder))
        for turn in range(arguments.rounds):
            for name in arguments.calibrators[:: 1 if turn % 2 == 0 else -1]:
                words = [name, arguments.method, arguments.model, str(arguments.images), str(prepared)]
                command = [sys.executable, __file__, "--measure", *words]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found[name].append(json.loads(done.stdout.splitlines()[-1]))
    print(f"{arguments.model}, {arguments.method}, {arguments.images} images; medians of {arguments.rounds} rounds\n")
    print("|", " | ".join(COLUMNS), "|\n|---|---:|---:|---:|---:|")
    lines, figures = [], []
    for name, results in found.items():
        seconds, cpu, peak = (
            statistics.median(result[key] for result in results) for key in ("seconds", "cpu", "peak")
        )
        number, most = furthest(results[0]["ranges"], found[arguments.calibrators[0]][0]["ranges"])
        ranges = f"{number} of {len(results[0]['ranges'])} ({most:.2g})"
        lines.append((name, f"{seconds:.1f}", f"{cpu:.1f}", f"{peak / 1e9:.2f}", ranges))
        print("|", " | ".join(lines[-1]), "|")
        figures.append({"name": f"{name}, processor time", "value": round(cpu, 1), "unit": "s"})
        figures.append({"name": f"{name}, peak memory", "value": round(peak / 1e9, 2), "unit": "GB"})
    if arguments.result:
        write_result(
            arguments.result,
            topic="calibration",
            claim=f"Calibration by {arguments.method} beside ONNX Runtime's with all images at once",
            conditions=f"{arguments.model} at {SIDES[arguments.model]} pixels, {arguments.images} images; medians of "
            f"{arguments.rounds} rounds, each calibrator in its own process",
            figures=figures,
            columns=COLUMNS,
            rows=lines,
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(*sys.argv[2:5], int(sys.argv[5]), Path(sys.argv[6]))
    else:
        main()
