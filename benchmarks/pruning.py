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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from networks import Network, made
from results import Figure, add_result_option, write_result

from configs.loader import load
from configs.schema import PipelineConfig
from flows.record.locks import host
from gauntlet.benchmarking.contender import RaceEntry, RacePlan
from gauntlet.benchmarking.race import race
from gauntlet.benchmarking.rows import rows
from gauntlet.core.artifact import Artifact
from gauntlet.core.run_report import BenchmarkRow
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import Golden
from gauntlet.runtime.resources import usable_threads
from tasks.accuracy import accuracy
from tasks.export import export
from tasks.prune import Structured, prune
from tasks.quantize import quantize
from tasks.quantize.static import StaticInt8

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
    """Quantize a network and ask it the test images; `whole` are the answers of the FP32 network that was not cut."""
    kept = network.kept
    ranges = network.calibrated(RECIPE.calibration_method)
    model = quantize(RECIPE, network.workspace("int8"), model=kept.model, **ranges).artifacts["model"]
    told = {"model": model, "golden": whole, "test": kept.splits["test"], "source": kept.golden}
    report = accuracy(config.accuracy, network.workspace("accuracy"), **told)
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
    report.raise_if_blocked()
    own = report.artifacts["golden"]
    again = {"model": report.artifacts["network"], "signature": signature, "golden": own, "files": ()}
    exported = export(config.export, smaller.workspace("export"), **again).artifacts["model"]
    return replace(smaller, kept=network.kept.replace(model=exported, golden=own)), report.facts.macs_share


def main() -> None:
    """Prepare, race, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--prepare", action="store_true")
    add_result_option(parser)
    options = parser.parse_args()
    config = load(PRESET)
    whole = made(PRESET, config.data, config.train, config.export)
    found = {REFERENCE: in_int8(whole, config, whole.kept.golden, 1.0)}
    for cut in config.prune:
        if isinstance(cut, Structured):
            smaller, share = pruned(whole, config, cut)
            found[f"{cut.name}, INT8"] = in_int8(smaller, config, whole.kept.golden, share)
    entries = {name: RaceEntry(candidate.path) for name, candidate in found.items()}
    entries |= {CONTROL: entries[REFERENCE], "FP32": RaceEntry(whole.store.path(whole.kept.model))}
    if options.prepare:
        return
    golden = Golden.load(whole.store.path(whole.kept.golden))
    with tempfile.TemporaryDirectory() as folder, host(alone=True):
        inputs = Path(folder) / "inputs.npz"
        np.savez(inputs, **{name: array[: max(GOAL)] for name, array in golden.real.inputs.items()})
        plan = RacePlan(tuple(GOAL), options.rounds, block_ms=60, threads=usable_threads(), timeout_s=120)
        contenders = race(entries, inputs, plan).contenders
    print(f"| candidate | MACs left | accuracy | size, MB | {' | '.join(f'batch {b}, x {REFERENCE}' for b in GOAL)} |")
    print("|---|---:|---:|---:|---:|---:|")
    met, table, figures = [], [], []
    for name, contender in contenders.items():
        speed = rows(contender, contenders[REFERENCE], resolution=0.01)
        times = [f"{r.speedup:.2f} [{r.speedup_low:.2f}, {r.speedup_high:.2f}]" for r in speed]
        of = found.get(name)
        known = (f"{of.macs_left:.1%}", f"{of.accuracy:.2%}", f"{of.model.size_bytes / 1e6:.1f}") if of else ("",) * 3
        table.append((f"{name}{f', rejected: {of.rejected}' if of and of.rejected else ''}", *known, *times))
        print("|", " | ".join(table[-1]), "|")
        figures += [*figures_of(name, of, speed)] if of and name != REFERENCE and not of.rejected else []
        if of and not of.rejected and of.lost <= MAX_LOSS and all(row.speedup_low >= GOAL[row.batch] for row in speed):
            met.append(name)
    print(f"\ngoal (3x, 4x, at most 0.5 points lost): {', '.join(met) or 'missed'}")
    if options.result:
        write_result(
            options.result,
            topic="pruning",
            claim="A pruned INT8 network is several times as fast as the whole one in INT8",
            conditions=f"ResNet-18 on digits, the preset {PRESET}, {RECIPE.name}, {options.rounds} rounds of 60 ms",
            figures=figures,
            columns=("candidate", "MACs left", "accuracy", "size, MB", *(f"batch {batch}" for batch in GOAL)),
            rows=table,
        )


def figures_of(name: str, candidate: Candidate, speed: tuple[BenchmarkRow, ...]) -> Iterator[Figure]:
    """Yield what a candidate gains and loses, beside the goals."""
    for row in speed:
        goal = GOAL[row.batch]
        interval = {"low": round(row.speedup_low, 2), "high": round(row.speedup_high, 2)}
        named = f"{name}, {candidate.macs_left:.1%} of the MACs, over the whole network in INT8, batch {row.batch}"
        told = {"goal": f"at least {goal:g}", "met": row.speedup_low >= goal}
        yield Figure(name=named, value=round(row.speedup, 2), **interval, **told)
    lost, goal = 100 * candidate.lost, 100 * MAX_LOSS
    told = {"unit": "points", "goal": f"at most {goal:g} points", "met": lost <= goal}
    yield Figure(name=f"{name}, accuracy lost against the whole FP32 network", value=round(lost, 2), **told)


if __name__ == "__main__":
    main()
