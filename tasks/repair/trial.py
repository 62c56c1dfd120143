"""Evaluate a set of float nodes: predict its quality by switches, or quantize, run and race the model."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
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
from tasks.repair.switchable_model import SwitchableModel

Nodes = frozenset[str]

ROUNDS = 6


class Speed(Frozen):
    """Speed-up over the FP32 model in a short race, with its 95 % interval."""

    speedup: Number
    low: Number
    high: Number


class Trial(Frozen):
    """The full evaluation of one set of float nodes."""

    float_nodes: tuple[str, ...]
    predicted: QualitySummary
    quality: QualitySummary
    good: bool = Field(description="within the limits of the accuracy gate, on the images of the search")
    speed: Speed | None = Field(description="None if it was not good and therefore not raced")


@dataclass
class Evaluator:
    """Evaluates sets of float nodes; `write` quantizes the model to `file` with the given nodes in float."""

    network: SwitchableModel
    reference: ReferenceOutputs
    file: Path
    write: Callable[[Collection[str]], object]
    sensitivity_images: int
    prediction_images: int

    @property
    def nodes(self) -> Nodes:
        """The nodes that can be left in float."""
        return self.network.nodes

    def alone(self, node: str) -> QualitySummary:
        """Return the quality when only this node is quantized."""
        return self._switched([node], self.sensitivity_images)

    def predict(self, nodes: Nodes) -> QualitySummary:
        """Return the quality with these nodes in float, by the switches."""
        return self._switched(self.nodes - nodes, self.prediction_images)

    def _switched(self, quantized: Collection[str], images: int) -> QualitySummary:
        return self.reference.quality(self.network.run(first_samples(self.reference.samples, images), quantized))

    def evaluate(self, nodes: Nodes) -> QualitySummary:
        """Return the quality of the model quantized with these nodes in float, on all images."""
        self.write(nodes)
        return self.reference.quality(self.reference.run(self.file))

    def race(self) -> Speed:
        """Race the last evaluated model against FP32, with one sample per call (or the model's fixed batch)."""
        batch, inputs = self.reference.batch, self.file.with_name("inputs.npz")
        samples = {n: np.resize(a, (batch, *a.shape[1:])) for n, a in self.reference.samples.items()}
        np.savez(inputs, allow_pickle=False, **samples)
        plan = RacePlan(
            batch_sizes=(batch,),
            rounds=ROUNDS,
            block_ms=40,
            threads=usable_threads(),
            timeout_s=60,
            restarts=False,  # the gates race what passes again, with new processes in every round
        )
        entries = {"fp32": RaceEntry(self.reference.model), "repaired": RaceEntry(self.file)}
        measured = race(entries, inputs, plan).contenders
        failed = [contender.error for contender in measured.values() if contender.error]
        if failed:
            raise StageError(f"the race of a repaired model against FP32 failed: {failed[0]}")
        row = rows(measured["repaired"], measured["fp32"], resolution=0)[0]
        return Speed(speedup=row.speedup, low=row.speedup_low, high=row.speedup_high)
