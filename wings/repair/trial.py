"""Evaluate a set of float nodes: predict its quality by switches, or quantize, run and race the model."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import numpy as np
from pydantic import Field

from gauntlet.core.arrays import write_arrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.datasets.golden import first_samples
from gauntlet.race.contender import Entry, Plan, Priority
from gauntlet.race.table import run_race
from gauntlet.runtime.resources import usable_threads
from wings.repair.quality import QualitySummary, ReferenceOutputs
from wings.repair.switchable_model import SwitchableModel, Unit

Nodes = frozenset[str]
ROUNDS = 6
RANKING_IMAGES, PREDICTION_IMAGES, MIN_PREDICTION_IMAGES = 4, 64, 16
"""To rank the units on, and to predict a set's quality on: at most, and at least where the network is slow."""


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
    speed: Speed | None = Field(description="None if it was not raced: not good, or for another runtime")


@dataclass
class Evaluator:
    """Evaluates sets of float nodes; `write` quantizes the model to `file` with the given nodes in float."""

    network: SwitchableModel
    reference: ReferenceOutputs
    file: Path
    write: Callable[[Collection[str]], object]
    stem: Nodes = frozenset()
    """In float in every set: not among `nodes`."""
    prediction_s: float = math.inf
    """Time for a prediction; a network that needs longer for all of its images gets fewer of them."""
    priority: Priority = "auto"
    """Of the race's turns."""
    raced: bool = True
    """Whether what is good is raced: not a file for another runtime."""
    seconds_per_image: float = 0.0

    @property
    def prediction_images(self) -> int:
        """Images on which the quality of a set is predicted."""
        fitting = self.prediction_s / self.seconds_per_image if self.seconds_per_image else math.inf
        return int(min(PREDICTION_IMAGES, max(MIN_PREDICTION_IMAGES, fitting)))

    @property
    def nodes(self) -> Nodes:
        """The nodes that can be left in float."""
        return self.network.nodes - self.stem

    @property
    def units(self) -> tuple[Unit, ...]:
        """These nodes in groups that are left in float together, in the order of the graph."""
        return tuple(unit for unit in self.network.units if self.stem.isdisjoint(unit))

    def alone(self, nodes: Nodes) -> QualitySummary:
        """Return the quality when only these nodes are quantized."""
        return self._switched(nodes, RANKING_IMAGES)

    def predict(self, nodes: Nodes) -> QualitySummary:
        """Return the quality with these nodes in float, by the switches."""
        return self._switched(self.nodes - nodes, self.prediction_images)

    def _switched(self, quantized: Collection[str], images: int) -> QualitySummary:
        start = monotonic()
        outputs = self.network.run(first_samples(self.reference.samples, images), quantized)
        took_s = (monotonic() - start) / min(images, len(self.reference))
        self.seconds_per_image = min(took_s, self.seconds_per_image or math.inf)
        return self.reference.quality(outputs)

    def evaluate(self, nodes: Nodes) -> QualitySummary:
        """Return the quality of the model quantized with these nodes in float, on all images."""
        self.write(nodes | self.stem)
        return self.reference.quality(self.reference.run(self.file))

    def race(self) -> Speed:
        """Race the last evaluated model against FP32, with one sample per call (or the model's fixed batch)."""
        batch, inputs = self.reference.batch, self.file.with_name("inputs.npz")
        samples = {n: np.resize(a, (batch, *a.shape[1:])) for n, a in self.reference.samples.items()}
        write_arrays(inputs, samples)
        plan = Plan(
            batch_sizes=(batch,),
            rounds=ROUNDS,
            block_ms=40,
            threads=usable_threads(),
            timeout_s=60,
            priority=self.priority,
            restarts=False,  # the gates race what passes again, with new processes in every round
        )
        entries = {"fp32": Entry(self.reference.model), "repaired": Entry(self.file)}
        table = run_race(entries, plan, "fp32", inputs=inputs, control=False)
        if failure := table.failure(*entries):
            raise StageError(f"the race of a repaired model against FP32 failed: {failure}")
        [row] = table.rows["repaired"]
        return Speed(speedup=row.speedup, low=row.speedup_low, high=row.speedup_high)
