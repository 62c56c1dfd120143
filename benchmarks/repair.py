"""Repair beside NNCF's accuracy control: evaluations, seconds, accuracy on images that neither saw, and latency.

    python benchmarks/repair.py [--network resnet18] [--uneven] [--per-tensor] [--nncf PYTHON] [--result FILE.json]

Trains the network on digits once (see networks.py and mobile_networks.py); with --uneven, channels differ a
thousandfold in range, and its INT8 form collapses. Both get the same calibration images, the same validation images and
the same accuracy to keep on them. PYTHON is the interpreter of another environment with nncf, onnx and onnxruntime;
without it, NNCF does not run. Last, everything is raced against FP32 at batch 1. FP32's own evaluation is counted in
both.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from mobile_networks import mobile_network
from networks import Network, trained, with_uneven_channels
from results import Figure, Measured, conclude, script_parser

from gauntlet.core.artifact import Artifact
from gauntlet.core.signature import Signature
from gauntlet.datasets import read_split
from gauntlet.race.contender import Entry, Plan
from gauntlet.race.table import run_race
from gauntlet.runtime.resources import ResourceUsage, usable_threads
from tasks.accuracy import AccuracyConfig, accuracy
from tasks.quantize import quantize
from tasks.quantize.static import StaticInt8
from wings.repair import RepairConfig, repair
from wings.repair.trial import PREDICTION_IMAGES, RANKING_IMAGES

CONTROL = Path(__file__).with_name("nncf_accuracy_control.py")
TORCHVISION = ("mobilenet_v3_large", "mobilenet_v2", "efficientnet_b0")


def nncf_control(network: Network, python: str, limits: AccuracyConfig, granularity: str) -> Artifact | None:
    """Let NNCF do it; print what it took."""
    import onnx

    out = network.workspace("nncf")
    splits = {name: read_split(network.store.path(a)) for name, a in network.kept.splits.items()}
    name = next(iter(splits["test"].take(slice(0, 1))))
    arrays = {split: splits[split].take(slice(0, 256))[name] for split in ("calibration", "validation")}
    model, file = network.store.path(network.kept.model), out.folder / "nncf.onnx"
    np.savez(out.folder / "data.npz", labels=splits["validation"].labels[:256], **arrays)
    done = subprocess.run(
        [python, str(CONTROL), str(model), str(out.folder / "data.npz"), str(file), str(limits.max_accuracy_drop),
         granularity],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        print("NNCF: failed:", done.stderr.strip().splitlines()[-1])
        return None
    told = json.loads(done.stdout.splitlines()[-1])
    print(f"NNCF: {told['seconds']:.1f} s; {told['full']} full evaluations and {told['partial']} on fewer images, "
          f"{told['images']} images answered in all; {'; '.join(told['told'])}", flush=True)  # fmt: skip
    proto = onnx.load(file)
    Signature.read(onnx.load(model)).write(proto)
    onnx.save(proto, file)
    return out.store_file(file)


def repaired(network: Network, recipe: StaticInt8, limits: AccuracyConfig) -> tuple[dict[str, Artifact], list[Figure]]:
    """Quantize and repair; print what it took. Return the quantized and the repaired model, and the figures."""
    kept, ranges = network.kept, network.calibrated(recipe.calibration_method)
    quantized = quantize(recipe, network.workspace("naive"), model=kept.model, **ranges).artifacts["model"]
    shutil.rmtree(network.workspace("repair").folder)
    out, config, start = network.workspace("repair"), RepairConfig(), time.perf_counter()
    with ResourceUsage() as measured:
        report = repair(
            config, out, recipe=recipe, accuracy=limits, model=kept.model, quantized=quantized,
            images=kept.splits["validation"], test=kept.splits["test"], **ranges,
        )  # fmt: skip
    seconds, facts = time.perf_counter() - start, report.facts
    full, ranked, predicted = 2 + len(facts.trials), facts.ranked, facts.predictions  # FP32 and the candidate, too
    images = full * facts.images + ranked * RANKING_IMAGES + predicted * min(PREDICTION_IMAGES, facts.images)
    costliest = ", ".join(f"{r.nodes[0]} {r.sqnr_db:.1f} dB" for r in facts.ranking[:3])
    print(f"ours: {seconds:.1f} s, {measured.peak_rss_bytes / 1e6:.0f} MB, {facts.stopped}; "
          f"{full} full evaluations and {ranked + predicted} on fewer images, {images} images run in all; "
          f"{len(facts.float_nodes)} of {facts.nodes} nodes in float: {', '.join(facts.float_nodes[:6])}; "
          f"costliest: {costliest}", flush=True)  # fmt: skip
    figures = [
        Figure(name="time of the repair", value=round(seconds, 1), unit="s"),
        Figure(name="peak memory", value=round(measured.peak_rss_bytes / 1e9, 2), unit="GB"),
        Figure(name="images run", value=images),
        Figure(name="nodes left in float", value=len(facts.float_nodes), unit=f"of {facts.nodes}"),
    ]
    return {recipe.name: quantized, "repaired": report.artifacts["model"]}, figures


def compared(network: Network, models: dict[str, Artifact], limits: AccuracyConfig) -> list[tuple[str, ...]]:
    """Race the models at batch 1, and return their accuracy on the test images and their speed."""
    kept, samples = network.kept, network.workspace("race").folder / "inputs.npz"
    np.savez(samples, **read_split(network.store.path(kept.splits["test"])).take(slice(0, 1)))
    plan = Plan(batch_sizes=(1,), rounds=16, block_ms=60, threads=usable_threads(), timeout_s=60)
    entries = {n: Entry(network.store.path(m)) for n, m in models.items()}
    table = run_race(entries, plan, "fp32", inputs=samples, control=False)
    lines = []
    for name, model in models.items():
        out = network.workspace("accuracy")
        facts = accuracy(limits, out, model=model, golden=kept.golden, test=kept.splits["test"]).facts
        row = table.rows[name][0]
        speed = f"{row.speedup:.2f} [{row.speedup_low:.2f}, {row.speedup_high:.2f}]"
        lines.append((name, f"{facts.accuracy:.2%}", f"{facts.sqnr_db:.1f}", f"{row.median_ms:.2f}", speed))
    return lines


def main() -> int:
    """Repair both ways, and compare."""
    parser = script_parser(__doc__)
    parser.add_argument("--network", default="resnet18", choices=("resnet18", *TORCHVISION))
    parser.add_argument("--uneven", action="store_true")
    parser.add_argument("--per-tensor", action="store_true")
    parser.add_argument("--max-drop", type=float, default=0.01)
    parser.add_argument("--nncf", metavar="PYTHON")
    options = parser.parse_args()
    network = (mobile_network if options.network in TORCHVISION else trained)(options.network)
    network = with_uneven_channels(network) if options.uneven else network
    recipe = StaticInt8(per_channel=not options.per_tensor)
    limits = AccuracyConfig(max_accuracy_drop=options.max_drop, min_sqnr_db=0)
    ours, figures = repaired(network, recipe, limits)
    models = {"fp32": network.kept.model} | ours
    if options.nncf:
        theirs = nncf_control(network, options.nncf, limits, "per-tensor" if options.per_tensor else "per-channel")
        models |= {"nncf": theirs} if theirs else {}
    claim = f"{options.network}: repair keeps the accuracy and the speed"
    conditions = (
        f"digits; at most {100 * options.max_drop:g} points of accuracy to lose on the validation images; "
        f"batch 1 in one race; load {os.getloadavg()[0]:.1f}"
    )
    columns = ("model", "accuracy on the test images", "SQNR, dB", "ms", "x FP32")
    found = Measured(claim, conditions, tuple(figures), columns, compared(network, models, limits))
    return conclude(found, "repair", options.result)


if __name__ == "__main__":
    sys.exit(main())
