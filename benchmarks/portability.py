"""Saturation as it is predicted, beside what an emulated processor without VNNI (and an Arm one) answers.

    python benchmarks/portability.py [--network resnet18] [--images 48] [--arm]

Trains the network on digits once (see networks.py), quantises it in three ways, and prints for each: the verdict on
16 calibration images and the seconds that it took; then, on the same test images, the accuracy with exact sums, the
predicted and the emulated accuracy, and the predicted and the emulated signal to noise of the answers.
"""

import argparse
import time

from networks import EPOCHS, trained

from tasks.data.read import read_split
from tasks.portability import PortabilityConfig, check_portability
from tasks.portability.emulate import Target, emulated, state
from tasks.portability.predict import predict
from tasks.portability.simulate import Network as Cut
from tasks.quantize import quantize
from tasks.quantize.static import StaticInt8

RECIPES = (StaticInt8(), StaticInt8(per_channel=False), StaticInt8(reduce_range=True))


def main() -> None:
    """Quantise, predict, emulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet18", choices=sorted(EPOCHS))
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--arm", action="store_true")
    options = parser.parse_args()
    targets: list[Target] = ["x86-avx2", "arm64"] if options.arm else ["x86-avx2"]
    network = trained(options.network)
    splits, ranges = network.kept.splits, network.calibrated(StaticInt8().method)
    test = read_split(network.store.path(splits["test"]))
    for recipe in RECIPES:
        report = quantize(recipe, network.workspace(recipe.name), model=network.kept.model, **ranges)
        model, path = report.artifacts["model"], network.store.path(report.artifacts["model"])
        start = time.perf_counter()
        facts = check_portability(
            PortabilityConfig(),
            network.workspace("portability"),
            model=model,
            samples=splits["calibration"],
            test=splits["test"],
            emulators={},
        ).facts
        print(f"{recipe.name}: {facts.verdict} in {time.perf_counter() - start:.1f} s ({facts.reason})", flush=True)
        found = predict(Cut(path), path, test, options.images)
        print(f"  {found.samples} test images: exact {found.exact_accuracy:.4f}, predicted {found.accuracy:.4f}, "
              f"{found.sqnr_db:.1f} dB", flush=True)  # fmt: skip
        for target in targets:
            start = time.perf_counter()
            seen = emulated(target, state(target), path, test, images=options.images, timeout_s=1800)
            if not seen.images:
                print(f"  {target} {seen.runtime}")
                continue
            print(f"  {target} ({seen.runtime}): {seen.accuracy:.4f}, {seen.sqnr_db:.1f} dB, "
                  f"in {time.perf_counter() - start:.0f} s", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
