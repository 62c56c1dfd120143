"""What pruning adds to INT8: the pruned networks of a preset, in INT8, raced against the whole one in INT8.

    python benchmarks/pruning.py [--rounds 24] [--prepare]

Trains the network of digits-resnet18-pruned (see networks.py) and prunes it to each budget of the preset, once: both
are kept. Each network goes through the stages export, calibrate, quantize and accuracy as in a run, then all meet in
one interleaved race; `--prepare` stops before it. Prints the table, and whether the goal is met by one candidate: at
least 3x at batch 1 and 4x at batch 8, for at most half a point of the whole FP32 model's accuracy.
"""

import argparse
import hashlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from networks import Network, made

from configs.load import load
from configs.schema import PipelineConfig
from flows.locks import HOST_LOCK, locked
from tasks.accuracy import check_accuracy
from tasks.artifact import Artifact
from tasks.benchmark.contender import Entry, Plan
from tasks.benchmark.race import race
from tasks.benchmark.rows import rows
from tasks.data.golden import Golden
from tasks.export import export
from tasks.prune import Structured, prune
from tasks.quantize import quantize
from tasks.quantize.static import StaticInt8
from tasks.runtime.threads import usable_threads
from tasks.signature import Signature

PRESET = "digits-resnet18-pruned"
RECIPE = StaticInt8(activations="u8", weights="s8")
REFERENCE, CONTROL = "INT8", "INT8 again"
GOAL, MAX_LOSS = {1: 3.0, 8: 4.0}, 0.005


@dataclass(frozen=True)
class Candidate:
    """A network in INT8."""

    model: Artifact
    path: Path
    macs_left: float
    lost: float
    """Accuracy, of the whole FP32 model's."""
    accuracy: float
    rejected: str
    """By which checks of the accuracy gate; empty for none."""


def in_int8(network: Network, config: PipelineConfig, whole: Artifact, macs_left: float) -> Candidate:
    """Quantise a network and ask it the test images; `whole` are the answers of the FP32 network that was not cut."""
    kept = network.kept
    ranges = network.calibrated(RECIPE.method)
    model = quantize(RECIPE, network.workspace("int8"), model=kept.model, **ranges).artifacts["model"]
    told = {"model": model, "golden": whole, "test": kept.splits["test"], "source": kept.golden}
    report = check_accuracy(config.accuracy, network.workspace("accuracy"), **told)
    facts, rejected = report.facts, "; ".join(check.name for check in report.failures)
    assert facts.accuracy is not None and facts.reference_accuracy is not None  # digits have labels
    lost = facts.reference_accuracy - facts.accuracy
    return Candidate(model, network.store.path(model), macs_left, lost, facts.accuracy, rejected)


def pruned(network: Network, config: PipelineConfig, cut: Structured) -> tuple[Network, float]:
    """Return the network, pruned and exported, and the share of its work that is left.

    The workspace keeps the checkpoint of the fine-tuning, so that a second call learns nothing again.
    """
    assert network.kept.source is not None
    digest = hashlib.sha256(cut.model_dump_json().encode()).hexdigest()[:12]
    smaller = Network(network.kept, network.store, network.folder / f"{cut.name}-{digest}")
    signature = Signature.read(onnx.load(network.store.path(network.kept.model), load_external_data=False))
    golden, splits = network.kept.golden, network.kept.splits
    told = {"network": network.kept.source, "signature": signature, "golden": golden, "splits": splits}
    report = prune(cut, smaller.workspace("prune"), **told)
    report.enforce()
    own = report.artifacts["golden"]
    again = {"model": report.artifacts["network"], "signature": signature, "golden": own, "files": ()}
    exported = export(config.export, smaller.workspace("export"), **again).artifacts["model"]
    return replace(smaller, kept=network.kept.replace(model=exported, golden=own)), report.facts.macs_share


def main() -> None:
    """Prepare, race, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--prepare", action="store_true")
    options = parser.parse_args()
    config = load(PRESET)
    whole = made(PRESET, config.data, config.train, config.export)
    found = {REFERENCE: in_int8(whole, config, whole.kept.golden, 1.0)}
    for cut in config.prune:
        if isinstance(cut, Structured):
            smaller, share = pruned(whole, config, cut)
            found[f"{cut.name}, INT8"] = in_int8(smaller, config, whole.kept.golden, share)
    entries = {name: Entry(candidate.path) for name, candidate in found.items()}
    entries |= {CONTROL: entries[REFERENCE], "FP32": Entry(whole.store.path(whole.kept.model))}
    if options.prepare:
        return
    golden = Golden.load(whole.store.path(whole.kept.golden))
    with tempfile.TemporaryDirectory() as folder, locked(HOST_LOCK, shared=False):
        inputs = Path(folder) / "inputs.npz"
        np.savez(inputs, **{name: array[: max(GOAL)] for name, array in golden.real.inputs.items()})
        plan = Plan(tuple(GOAL), options.rounds, block_ms=60, threads=usable_threads(), timeout_s=120)
        contenders = race(entries, inputs, plan).contenders
    print(f"| candidate | MACs left | accuracy | size, MB | {' | '.join(f'batch {b}, x {REFERENCE}' for b in GOAL)} |")
    print("|---|---:|---:|---:|---:|---:|")
    met = []
    for name, contender in contenders.items():
        speed = rows(contender, contenders[REFERENCE], resolution=0.01)
        times = " | ".join(f"{r.speedup:.2f} [{r.speedup_low:.2f}, {r.speedup_high:.2f}]" for r in speed)
        of = found.get(name)
        known = (f"{of.macs_left:.1%}", f"{of.accuracy:.2%}", f"{of.model.size_bytes / 1e6:.1f}") if of else ("",) * 3
        print(f"| {name}{f', rejected: {of.rejected}' if of and of.rejected else ''} | {' | '.join(known)} | {times} |")
        if of and not of.rejected and of.lost <= MAX_LOSS and all(row.speedup_low >= GOAL[row.batch] for row in speed):
            met.append(name)
    print(f"\ngoal (3x, 4x, at most 0.5 points lost): {', '.join(met) or 'missed'}")


if __name__ == "__main__":
    main()
