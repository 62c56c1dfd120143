"""Saturation as it is predicted, beside what an emulated processor without VNNI, and an Arm one, really answer.

    python benchmarks/portability.py [--images 96] [--resnet18] [--no-emulation]

The models: a small CNN on digits that is built to saturate (see saturating_model.py), with all 8 bits and with 7-bit
weights; with `--resnet18`, a real network too. Prints a line each: the verdict of the stage as a run makes it, on 16
calibration images, and its processor time; then, on the same test images, the accuracy with exact sums, as predicted,
and as emulated, and the signal to noise of the predicted and of the emulated answers.
"""

import argparse
import time
from dataclasses import replace

import onnx
from networks import Network, made, trained
from results import Figure, add_result_option, write_result
from saturating_model import with_doubled_channels

from gauntlet.calibration.percentile import Percentile
from gauntlet.datasets import read_split
from gauntlet.datasets.digits import Digits
from tasks.export.torchscript import TorchScript
from tasks.portability import PortabilityConfig, portability
from tasks.portability.emulation import EmulatedProcessor, emulated, emulator_status
from tasks.portability.prediction import predict
from tasks.portability.simulation import SaturationSimulator as Cut
from tasks.quantize import quantize
from tasks.quantize.static import StaticInt8
from tasks.train.torch import TorchTraining

OFTEN_AT_THE_TOP = Percentile(percentile=93)
TARGETS: tuple[EmulatedProcessor, ...] = ("x86-avx2", "arm64")
COLUMNS = ("model", "verdict", "CPU s", "exact", "predicted", "dB", *(f"{target}, dB" for target in TARGETS))


def built_to_saturate() -> Network:
    """Return the small CNN with every inner channel twice."""
    learning = TorchTraining(architecture="small-cnn", epochs=10, learning_rate=0.01)
    network = made("small-cnn", Digits(image_size=8), learning, TorchScript())
    out = network.workspace("twins")
    onnx.save(with_doubled_channels(onnx.load(network.store.path(network.kept.model))), out.folder / "model.onnx")
    return replace(network, kept=network.kept.replace(model=out.store_file(out.folder / "model.onnx")))


def judge(
    title: str, network: Network, recipe: StaticInt8, images: int, targets: tuple[EmulatedProcessor, ...]
) -> tuple[list[Figure], list[str]]:
    """Quantize, judge, predict and emulate; print the line, and return its figures and its cells."""
    splits = network.kept.splits
    ranges = network.calibrated(recipe.calibration_method)
    model = quantize(recipe, network.workspace(recipe.name), model=network.kept.model, **ranges).artifacts["model"]
    path, test = network.store.path(model), read_split(network.store.path(splits["test"]))
    start = time.process_time()
    facts = portability(
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
    figures = [
        Figure(name=f"{title}: processor time of the verdict", value=round(spent, 2), unit="s"),
        Figure(name=f"{title}: accuracy, exact sums", value=round(found.exact_accuracy, 4)),
        Figure(name=f"{title}: accuracy, predicted", value=round(found.accuracy, 4)),
    ]
    for target in targets:
        seen = emulated(target, emulator_status(target), path, test, images=images, timeout_s=1800)
        line.append(f"{seen.accuracy:.4f}, {seen.sqnr_db:.2f}" if seen.images else seen.runtime)
        if seen.images:
            figures.append(Figure(name=f"{title}: accuracy, emulated as {target}", value=round(seen.accuracy, 4)))
    line += [""] * (len(TARGETS) - len(targets))
    print("| " + " | ".join(line) + " |", flush=True)
    return figures, line


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=96)
    parser.add_argument("--resnet18", action="store_true")
    parser.add_argument("--no-emulation", action="store_true")
    add_result_option(parser)
    options = parser.parse_args()
    targets = () if options.no_emulation else TARGETS
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---|---|" + "---:|" * (len(COLUMNS) - 2))
    twins = built_to_saturate()
    found = []
    for title, recipe in (
        ("built to saturate", StaticInt8(calibration_method=OFTEN_AT_THE_TOP)),
        ("the same, 7-bit weights", StaticInt8(calibration_method=OFTEN_AT_THE_TOP, reduce_range=True)),
    ):
        found.append(judge(title, twins, recipe, options.images, targets))
    if options.resnet18:
        network = trained("resnet18")
        recipes = (StaticInt8(), StaticInt8(per_channel=False), StaticInt8(reduce_range=True))
        found += [judge(f"ResNet-18, {one.name}", network, one, options.images, targets) for one in recipes]
    if options.result:
        write_result(
            options.result,
            topic="portability",
            claim="Predicted saturation is what an emulated processor without VNNI computes",
            conditions=f"digits, {options.images} test images, 16 calibration images",
            figures=[figure for figures, _ in found for figure in figures],
            columns=COLUMNS,
            rows=[line for _, line in found],
        )


if __name__ == "__main__":
    main()
