"""A full evaluation: quantise for good, answer all images, race against the FP32 model."""

from pathlib import Path

import numpy as np
from pydantic import Field

from tasks.benchmark.contender import Entry, Plan
from tasks.benchmark.race import race
from tasks.benchmark.rows import rows
from tasks.errors import StageError
from tasks.frozen import Frozen, Number
from tasks.repair.quality import Quality, Reference
from tasks.runtime.threads import usable_threads

ROUNDS = 6
BLOCK_MS = 40
TIMEOUT_S = 60


class Speed(Frozen):
    """Speed-up over the FP32 model in a short race, with its 95 % interval."""

    speedup: Number
    low: Number
    high: Number


class Attempt(Frozen):
    """One set of nodes, really left in float."""

    float_nodes: tuple[str, ...]
    predicted: Quality
    quality: Quality
    good: bool = Field(description="within the limits of the accuracy gate, on the images of the search")
    speed: Speed | None = Field(description="None where it was not good, and so not raced")


def race_with(reference: Reference, candidate: Path) -> Speed:
    """Race a candidate against the reference at one sample a call (or the model's fixed batch)."""
    batch, inputs = reference.batch, candidate.with_name("inputs.npz")
    samples = {n: np.resize(a, (batch, *a.shape[1:])) for n, a in reference.samples.items()}
    np.savez(inputs, allow_pickle=False, **samples)
    plan = Plan(
        batch_sizes=(batch,),
        rounds=ROUNDS,
        block_ms=BLOCK_MS,
        threads=usable_threads(),
        timeout_s=TIMEOUT_S,
        rounds_per_session=ROUNDS,  # the gates race what passes once more, and with processes started anew
    )
    entries = {"fp32": Entry(reference.model), "repaired": Entry(candidate)}
    measured = race(entries, inputs, plan).contenders
    failed = [contender.error for contender in measured.values() if contender.error]
    if failed:
        raise StageError(f"the race of a repaired model against FP32 failed: {failed[0]}")
    row = rows(measured["repaired"], measured["fp32"], resolution=0)[0]
    return Speed(speedup=row.speedup, low=row.speedup_low, high=row.speedup_high)
