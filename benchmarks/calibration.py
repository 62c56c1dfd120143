"""What calibration costs beside ORT's calibrators: peak memory and seconds, each in its own process, in turns.

    python benchmarks/calibration.py [--model resnet18|resnet50] [--images 96] [--methods entropy] [--rounds 3]
    python benchmarks/calibration.py --model resnet50 --images 512 --calibrators ours --rounds 1 --folder DIR

With `--folder`, the network and all answers stay there, so that a long table can be made in several calls: each call
prints the table of everything that the folder has for its model.

ResNet-18 gets scikit-learn's digits at 32x32 (repeated where more are asked for), ResNet-50 made ones at 224x224. The
weights are random, which changes neither cost. Images are made as they are asked for, so that only the calibrators'
memory counts. `ort` is its entropy with 2048 bins, as ours has, `ort-128` with 128, as `quantize_static` gives it;
where the last batch would be smaller, ORT gets the images that fill its batches. A process above the memory limit is
stopped and said so. The ranges of both are compared in the end.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

BATCH = 8
SIDES = {"resnet18": 32, "resnet50": 224}
CALIBRATORS = ("ours", "ort", "ort-128")


@dataclass(frozen=True)
class Images:
    """A split whose samples are made when they are taken, the same ones every time."""

    count: int
    side: int
    digits: np.ndarray | None = None
    labels: None = None

    def __len__(self) -> int:
        return self.count

    def take(self, indices: slice) -> dict[str, np.ndarray]:
        """Return some images, shape (n, 3, side, side), about normal."""
        numbers = range(self.count)[indices]
        if self.digits is not None:
            return {"input": self.digits[np.array(numbers) % len(self.digits)]}
        return {"input": np.stack([self._image(n) for n in numbers])}

    def _image(self, number: int) -> np.ndarray:
        rough = np.random.default_rng(number).standard_normal((3, 28, 28), dtype=np.float32)
        return np.kron(rough, np.ones((8, 8), np.float32))


def images_of(model: str, count: int) -> Images:
    """Return the images for a model."""
    if model == "resnet50":
        return Images(count, SIDES[model])
    from tasks.data.digits import Digits

    train = Digits().load().splits["train"]
    return Images(count, SIDES[model], train.take(slice(0, len(train)))["input"])


def export(model: str, folder: Path) -> Path:
    """Write the network with random weights, prepared for quantisation."""
    import torch

    from tasks.calibrate.prepare import prepare
    from tasks.sources.torch.architectures import Known

    torch.manual_seed(0)
    name, classes = ("resnet18", 10) if model == "resnet18" else (f"torchvision/{model}", 1000)
    side = SIDES[model]
    network = Known(architecture=name, channels=3, height=side, width=side, classes=classes).build().eval()
    axes = {"input": {0: "n"}, "logits": {0: "n"}}
    torch.onnx.export(
        network,
        (torch.zeros(1, 3, side, side),),
        folder / "model.onnx",
        input_names=["input"],
        output_names=["logits"],
        dynamic_axes=axes,
        dynamo=False,
    )
    prepare(folder / "model.onnx", folder / "prepared.onnx")
    return folder / "prepared.onnx"


def ours(prepared: Path, images: Images, method: str) -> dict[str, Any]:
    """Calibrate as the stage does."""
    from tasks.artifact import Store
    from tasks.calibrate.prepare import activations
    from tasks.calibrate.statistics import collect
    from tasks.ranges.entropy import Entropy
    from tasks.ranges.minmax import MinMax
    from tasks.ranges.percentile import Percentile
    from tasks.workspace import Workspace

    how = {"minmax": MinMax(), "entropy": Entropy(), "percentile": Percentile()}[method]
    out = Workspace(Store(prepared.parent), prepared.parent)
    seen = collect(out, prepared, activations(prepared), images, len(images), with_counts=how.counts)
    # The audit asks for the ranges after a half too, so they count.
    found = {
        count: {name: [float(end) for end in how.range_of(one)] for name, one in tensors.items()}
        for count, tensors in seen.after.items()
    }
    return found[len(images)]


def orts(prepared: Path, images: Images, method: str, bins: int) -> dict[str, Any]:
    """Calibrate as `quantize_static` does."""
    from onnxruntime.quantization import CalibrationMethod
    from onnxruntime.quantization.calibrate import create_calibrator

    whole = len(images) - len(images) % BATCH
    kinds = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
    options = {"entropy": {"num_bins": bins}, "percentile": {"symmetric": False}, "minmax": {}}[method]

    class Reader:
        def __init__(self) -> None:
            self.feeds = (images.take(slice(start, start + BATCH)) for start in range(0, whole, BATCH))

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.feeds, None)

    calibrator = create_calibrator(
        prepared,
        None,
        str(prepared.with_name("augmented.onnx")),
        calibrate_method=CalibrationMethod[kinds[method]],
        extra_options=options,
    )
    calibrator.collect_data(Reader())
    data = calibrator.compute_data()
    return {name: [float(np.squeeze(end)) for end in one.range_value] for name, one in data.items()}


def measure(calibrator: str, method: str, model: str, count: int, prepared: Path) -> None:
    """Calibrate in this process, and print seconds, peak memory, and the ranges."""
    images = images_of(model, count)
    start = time.perf_counter()
    if calibrator == "ours":
        ranges = ours(prepared, images, method)
    else:
        ranges = orts(prepared, images, method, 128 if calibrator == "ort-128" else 2048)
    seconds = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_SELF)
    # Not getrusage's: that of a child begins with the memory of the process that started it.
    status = Path("/proc/self/status").read_text()
    peak = 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    cpu = used.ru_utime + used.ru_stime
    print("\n" + json.dumps({"seconds": seconds, "cpu_seconds": cpu, "peak_bytes": peak, "ranges": ranges}))


def run(words: list[str], limit_bytes: float) -> dict[str, Any] | None:
    """Run one measurement in a process of its own; None where it went above the limit."""
    with tempfile.TemporaryFile("w+") as answer:
        process = subprocess.Popen([sys.executable, __file__, "--measure", *words], stdout=answer)
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                memory = watched.memory_info().rss
            except psutil.NoSuchProcess:
                break
            if memory > limit_bytes:
                process.kill()
                process.wait()
                return None
            time.sleep(0.05)
        if process.wait() != 0:
            raise SystemExit(f"{' '.join(words[:4])} ended with {process.returncode}")
        answer.seek(0)
        found: dict[str, Any] = json.loads(answer.read().splitlines()[-1])
        return found


def differences(one: dict[str, list[float]], other: dict[str, list[float]]) -> tuple[int, float]:
    """Return how many ranges differ, and the largest distance over a range's width."""
    apart = [
        max(abs(a - b) for a, b in zip(one[name], other[name], strict=True)) / ((other[name][1] - other[name][0]) or 1)
        for name in one
    ]
    return sum(distance > 0 for distance in apart), max(apart)


def main() -> None:
    """Measure in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SIDES, default="resnet18")
    parser.add_argument("--images", type=int, nargs="+", default=[96])
    parser.add_argument("--methods", choices=("minmax", "entropy", "percentile"), nargs="+", default=["entropy"])
    parser.add_argument("--calibrators", choices=CALIBRATORS, nargs="+", default=["ours", "ort"])
    parser.add_argument("--rounds", type=int, default=3, help="0 prints what the folder has")
    parser.add_argument("--limit-gb", type=float, default=12.0)
    parser.add_argument("--folder", type=Path, help="where the network and the answers stay")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)) / arguments.model
        folder.mkdir(parents=True, exist_ok=True)
        prepared = folder / "prepared.onnx"
        if not prepared.exists():
            export(arguments.model, folder)
        notes = folder / "answers.jsonl"
        notes.touch()
        for method in arguments.methods:
            for count in arguments.images:
                for turn in range(arguments.rounds):
                    for name in arguments.calibrators[:: 1 if turn % 2 == 0 else -1]:
                        if None in read(notes).get((method, count), {}).get(name, []):
                            continue  # what went above the limit would again
                        words = [name, method, arguments.model, str(count), str(prepared)]
                        note = [method, count, name, run(words, arguments.limit_gb * 1e9)]
                        with notes.open("a") as file:
                            file.write(json.dumps(note) + "\n")
        print("| model | method | images | calibrator | rounds | seconds | CPU, s | peak, GB | ranges unlike ours |")
        print("|---|---|---:|---|---:|---:|---:|---:|---:|")
        for (method, count), answers in sorted(read(notes).items()):
            for name, found in answers.items():
                words = [arguments.model, method, str(count), name, *cells(arguments, count, name, found, answers)]
                print(f"| {' | '.join(words)} |")


def read(notes: Path) -> dict[tuple[str, int], dict[str, list[dict[str, Any] | None]]]:
    """Return all answers: by method and images, by calibrator."""
    found: dict[tuple[str, int], dict[str, list[dict[str, Any] | None]]] = {}
    for line in notes.read_text().splitlines():
        method, count, name, answer = json.loads(line)
        found.setdefault((method, count), {}).setdefault(name, []).append(answer)
    return found


def cells(
    arguments: Any, count: int, name: str, found: list[Any], answers: dict[str, list[dict[str, Any] | None]]
) -> list[str]:
    """Return the measured part of a line of the table: medians over the rounds."""
    if None in found:
        return [str(len(found)), "", "", f"stopped above {arguments.limit_gb:g}", ""]
    apart, base = "", answers.get("ours", [])
    if name != "ours" and base and base[0] is not None and count % BATCH == 0:
        number, most = differences(found[0]["ranges"], base[0]["ranges"])
        apart = f"{number} of {len(found[0]['ranges'])} ({most:.2g})"
    seconds, cpu, peak = (statistics.median(a[key] for a in found) for key in ("seconds", "cpu_seconds", "peak_bytes"))
    return [str(len(found)), f"{seconds:.2f}", f"{cpu:.1f}", f"{peak / 1e9:.2f}", apart]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(*sys.argv[2:4], sys.argv[4], int(sys.argv[5]), Path(sys.argv[6]))
    else:
        main()
