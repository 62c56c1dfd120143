"""Saturation as it is predicted, beside what an emulated processor without VNNI, and an Arm one, really answer.

    python benchmarks/portability.py [--images 96] [--resnet18] [--no-emulation]

The models: a small CNN on digits that is built to saturate (see twins.py), with all 8 bits and with 7-bit weights; with
`--resnet18`, a real network too. Prints a line each: the verdict of the stage as a run makes it, on 16 calibration
images, and its processor time; then, on the same test images, the accuracy with exact sums, as predicted, and as
emulated, and the signal to noise of the predicted and of the emulated answers.
"""

import argparse
import time
from dataclasses import replace

import onnx
from networks import Network, made, trained
from twins import twinned

from tasks.data.digits import Digits
from tasks.data.read import read_split
from tasks.export.torchscript import TorchScript
from tasks.portability import PortabilityConfig, check_portability
from tasks.portability.emulate import Target, emulated, state
from tasks.portability.predict import predict
from tasks.portability.simulate import Network as Cut
from tasks.quantize import quantize
from tasks.quantize.static import StaticInt8
from tasks.ranges.percentile import Percentile
from tasks.train.torch import TorchTraining

OFTEN_AT_THE_TOP = Percentile(percentile=93)
TARGETS: tuple[Target, ...] = ("x86-avx2", "arm64")
COLUMNS = ("model", "verdict", "CPU s", "exact", "predicted", "dB", *(f"{target}, dB" for target in TARGETS))


def built_to_saturate() -> Network:
    """Return the small CNN with every inner channel twice."""
    learning = TorchTraining(architecture="small-cnn", epochs=10, learning_rate=0.01)
    network = made("small-cnn", Digits(image_size=8), learning, TorchScript())
    out = network.workspace("twins")
    onnx.save(twinned(onnx.load(network.store.path(network.kept.model))), out.folder / "model.onnx")
    return replace(network, kept=network.kept.replace(model=out.keep(out.folder / "model.onnx")))


def judge(title: str, network: Network, recipe: StaticInt8, images: int, targets: tuple[Target, ...]) -> None:
    """Quantise, judge, predict and emulate; print the line."""
    splits = network.kept.splits
    ranges = network.calibrated(recipe.method)
    model = quantize(recipe, network.workspace(recipe.name), model=network.kept.model, **ranges).artifacts["model"]
    path, test = network.store.path(model), read_split(network.store.path(splits["test"]))
    start = time.process_time()
    facts = check_portability(
        PortabilityConfig(),
        network.workspace("portability"),
        model=model,
        samples=splits["calibration"],
        test=splits["test"],
        emulators={},
    ).facts
    spent = time.process_time() - start
    found = predict(Cut(path), path, test, images)
    line = [title, facts.verdict, f"{spent:.2f}", f"{found.exact_accuracy:.4f}", f"{found.accuracy:.4f}"]
    line.append(f"{found.sqnr_db:.2f}")
    for target in targets:
        seen = emulated(target, state(target), path, test, images=images, timeout_s=1800)
        line.append(f"{seen.accuracy:.4f}, {seen.sqnr_db:.2f}" if seen.images else seen.runtime)
    print("| " + " | ".join([*line, *[""] * (len(TARGETS) - len(targets))]) + " |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=96)
    parser.add_argument("--resnet18", action="store_true")
    parser.add_argument("--no-emulation", action="store_true")
    options = parser.parse_args()
    targets = () if options.no_emulation else TARGETS
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---|---|" + "---:|" * (len(COLUMNS) - 2))
    twins = built_to_saturate()
    for title, recipe in (
        ("built to saturate", StaticInt8(method=OFTEN_AT_THE_TOP)),
        ("the same, 7-bit weights", StaticInt8(method=OFTEN_AT_THE_TOP, reduce_range=True)),
    ):
        judge(title, twins, recipe, options.images, targets)
    if options.resnet18:
        network = trained("resnet18")
        for recipe in (StaticInt8(), StaticInt8(per_channel=False), StaticInt8(reduce_range=True)):
            judge(f"ResNet-18, {recipe.name}", network, recipe, options.images, targets)


if __name__ == "__main__":
    main()
