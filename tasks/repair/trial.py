"""What a set of nodes in float gives: predicted by switches, or quantised for good, answered and raced."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from pydantic import Field

from gauntlet.benchmarking.contender import RaceEntry, RacePlan
from gauntlet.benchmarking.race import race
from gauntlet.benchmarking.rows import rows
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.datasets.golden import first_samples
from gauntlet.runtime.resources import usable_threads
from tasks.repair.quality import QualitySummary, ReferenceOutputs
from tasks.repair.smallest_set import Nodes
from tasks.repair.switchable_model import SwitchableModel

ROUNDS = 6
BLOCK_MS = 40
TIMEOUT_S = 60


class Speed(Frozen):
    """Speed-up over the FP32 model in a short race, with its 95 % interval."""

    speedup: Number
    low: Number
    high: Number


class Trial(Frozen):
    """One set of nodes, really left in float."""

    float_nodes: tuple[str, ...]
    predicted: QualitySummary
    quality: QualitySummary
    good: bool = Field(description="within the limits of the accuracy gate, on the images of the search")
    speed: Speed | None = Field(description="None where it was not good, and so not raced")


class Evaluator:
    """What a search asks.

    Args:
        network: the model with switches.
        reference: the images, and the FP32 model's answers.
        file: where `write` writes a model.
        write: quantises for good, with these nodes in float.
        sensitivity_images: to rank a node on.
        prediction_images: to predict a set's quality on.
    """

    def __init__(
        self,
        network: SwitchableModel,
        reference: ReferenceOutputs,
        file: Path,
        write: Callable[[Nodes], None],
        *,
        sensitivity_images: int,
        prediction_images: int,
    ) -> None:
        self.network, self.reference, self.file, self.write = network, reference, file, write
        self.few = first_samples(reference.samples, sensitivity_images)
        self.more = first_samples(reference.samples, prediction_images)

    @property
    def nodes(self) -> Nodes:
        """The nodes that can be left in float."""
        return self.network.nodes

    def alone(self, node: str) -> QualitySummary:
        """Return the quality when only this node is quantised."""
        return self.reference.quality(self.network.run(self.few, [node]))

    def predict(self, nodes: Nodes) -> QualitySummary:
        """Return the quality with these nodes in float, by the switches."""
        return self.reference.quality(self.network.run(self.more, self.nodes - nodes))

    def evaluate(self, nodes: Nodes) -> QualitySummary:
        """Quantise for good with these nodes in float, and answer all images."""
        self.write(nodes)
        return self.reference.quality(self.reference.ask(self.file))

    def race(self) -> Speed:
        """Race what was evaluated last against the FP32 model."""
        return race_against_reference(self.reference, self.file)


def race_against_reference(reference: ReferenceOutputs, candidate: Path) -> Speed:
    """Race a candidate against the reference at one sample a call (or the model's fixed batch)."""
    batch, inputs = reference.batch, candidate.with_name("inputs.npz")
    samples = {n: np.resize(a, (batch, *a.shape[1:])) for n, a in reference.samples.items()}
    np.savez(inputs, allow_pickle=False, **samples)
    plan = RacePlan(
        batch_sizes=(batch,),
        rounds=ROUNDS,
        block_ms=BLOCK_MS,
        threads=usable_threads(),
        timeout_s=TIMEOUT_S,
        restarts=False,  # the gates race what passes once more, with new processes in every round
    )
    entries = {"fp32": RaceEntry(reference.model), "repaired": RaceEntry(candidate)}
    measured = race(entries, inputs, plan).contenders
    failed = [contender.error for contender in measured.values() if contender.error]
    if failed:
        raise StageError(f"the race of a repaired model against FP32 failed: {failed[0]}")
    row = rows(measured["repaired"], measured["fp32"], resolution=0)[0]
    return Speed(speedup=row.speedup, low=row.speedup_low, high=row.speedup_high)
