"""What a target really did: where it ran, in which precision, and whether it went on answering the same.

A number is only worth its label. A session that asked for a GPU and got the processor, or a runtime that computes
float32 models in bfloat16, is found here by what it did, and is not ranked.
"""

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from tasks.benchmark.client import WorkerClient, WorkerFailed
from tasks.benchmark.precision import COARSE, FLOOR_DB, LEAST, LEAST_F16, ORDER, distance_db, named
from tasks.errors import StageError
from tasks.frozen import Frozen, JsonObject, Number
from tasks.report import Check
from tasks.runtime.graph import one_line
from tasks.runtime.node_macs import Arithmetic, read_model
from tasks.runtime.sandbox import ChildFailed, run_apart
from tasks.statistics import Array
from tasks.targets.base import BaseTarget, Precision
from tasks.targets.ort_cpu import OrtCpu

SAME_SIMULATION_DB = 3.0
"""A quantised model may be so much further from the float model than its own arithmetic, done exactly, is."""
STEADY_DB = 60.0
LEAST_MACS_SHARE = 0.99
READING_BYTES = 8 << 30
INTEGER_KERNELS = {"i8", "u8"}
WAY_OUT = "name the target after what it does, or give it another model"


class Truth(Frozen):
    """One model on one target, examined before the clock starts."""

    runtime: str = ""
    error: str | None = Field(None, description="why it gave no answers, where it did not")
    asked: str = Field("", description="provider or device that was asked for")
    nodes: dict[str, int] = Field(default_factory=dict, description="by provider or device")
    macs_share: Number = Field(math.nan, description="of the multiplications on what was asked for")
    kernels: dict[str, int] = Field(default_factory=dict, description="multiplying kernels by type, where known")
    stated: str = ""
    effective: str = Field("", description="the precision that the answers show")
    sqnr_db: Number = Field(math.nan, description="of the answers, against the same file computed exactly")
    quality_db: Number = Field(math.nan, description="of the answers, against the reference model")
    checks: tuple[Check, ...] = ()

    @property
    def reason(self) -> str | None:
        """Why it is not ranked, in one line, or None."""
        failed = [check for check in self.checks if check.blocks]
        return self.error or ("; ".join(map(str, failed)) if failed else None)


@dataclass(frozen=True)
class Expected:
    """What a model's answers should be: those of its graph as it is written, on the CPU, without any optimisation."""

    answers: list[Array]
    reference: list[Array]
    """Those of the model that all are compared with."""
    fixed_batch: int | None
    file: Arithmetic

    @property
    def quantized(self) -> bool:
        """Whether the file is a quantised model."""
        return self.file.quantized

    @property
    def batches(self) -> tuple[int, ...]:
        """The batches that a target is asked in: single samples and, where the model does not fix it, all at once."""
        samples = max(map(len, self.answers), default=1)
        return (1,) if self.fixed_batch or samples == 1 else (1, samples)

    @classmethod
    def of(cls, model: Path, inputs: Path, timeout_s: float, reference: "Expected | None" = None) -> "Expected":
        """Compute them, in other processes; without a reference, the model is its own.

        Raises:
            StageError: when the file is no model, or the runtime refuses it or the inputs, or breaks.
        """
        exact = OrtCpu(level="off")
        try:
            file = run_apart(read_model, model, inputs, timeout_s=timeout_s, memory_bytes=READING_BYTES).value
            loaded, _, answers = _ask(model, exact.command(), exact.options(), inputs, threads=1, timeout_s=timeout_s)
        except (WorkerFailed, ChildFailed) as error:
            raise StageError(f"{model}: {one_line(error)}") from error
        return cls(answers, reference.answers if reference else answers, loaded["fixed_batch"], file)


def _ask(
    model: Path,
    command: tuple[str, ...],
    options: JsonObject,
    inputs: Path,
    *,
    threads: int,
    timeout_s: float,
    batches: Sequence[int] = (1,),
) -> tuple[dict[str, Any], dict[str, Any], list[Array]]:
    """Return what a new worker says of loading, of the placement, and its answers to all inputs in every batch.

    They end where a batch behind the first one fails: the race tells why, and at which batch sizes.
    """
    with WorkerClient(command) as worker, tempfile.TemporaryDirectory() as folder:
        loaded = worker.load(model, inputs, threads, timeout_s, options)
        placement = worker.ask({"do": "placement"}, timeout_s)
        path, answers = Path(folder) / "answers.npz", list[Array]()
        for batch in batches:
            try:
                names = worker.ask({"do": "answers", "batch": batch, "path": str(path)}, timeout_s)["outputs"]
            except WorkerFailed:
                if not answers:
                    raise
                break
            with np.load(path, allow_pickle=False) as file:
                answers += [file[name] for name in names]
        return loaded, placement, answers


def examine(
    model: Path, target: BaseTarget, expected: Expected, inputs: Path, *, threads: int, timeout_s: float
) -> Truth:
    """Let a worker of the target load the model and answer; judge where it ran and how exact it was.

    What is stated is the coarser of the target's precision and of the file's own.
    """
    options = target.options() | {"refuse_fallback": False}  # it is found below, and told with a number
    stated = max(target.stated, expected.file.precision, key=ORDER.index)
    try:
        loaded, placement, answers = _ask(
            model,
            target.command(),
            options,
            inputs,
            threads=threads,
            timeout_s=timeout_s,
            batches=expected.batches,
        )
    except WorkerFailed as error:
        return Truth(stated=stated, error=one_line(error))
    kernels, times = placement.get("kernels", {}), len(answers) // len(expected.answers)
    exact, finest = (
        distance_db(answers, expected.answers * times, None if expected.quantized else least)
        for least in (LEAST_F16 if stated == "f16" else LEAST, LEAST)
    )
    truth = Truth(
        runtime=loaded["runtime"],
        asked=placement["asked"],
        nodes={name: len(found) for name, found in placement["nodes"].items()},
        macs_share=expected.file.share(placement["asked"], placement["nodes"]),
        kernels=kernels,
        stated=stated,
        effective=effective(exact, kernels, expected),
        sqnr_db=exact,
        quality_db=distance_db(answers, expected.reference * times),
    )
    return truth.replace(checks=(_placed(truth), *_precise(truth, expected, target.stated, finest)))


def effective(exact_db: float, kernels: Mapping[str, int], expected: Expected) -> str:
    """Return the precision that was computed in: by the answers, or by the kernels where answers cannot tell."""
    if expected.quantized:
        return "int8" if set(kernels) & INTEGER_KERNELS else named(exact_db, kernels) if kernels else "unknown"
    if any(array.dtype.kind == "f" for array in expected.answers):
        return named(exact_db, kernels)
    return max((kind for kind in ORDER if kind in kernels), key=ORDER.index, default="unknown")


def _placed(truth: Truth) -> Check:
    there = ", ".join(f"{count} nodes on {name}" for name, count in truth.nodes.items())
    return Check(
        name="target.macs_share",
        value=truth.macs_share,
        op=">=",
        limit=LEAST_MACS_SHARE,
        detail=f"{truth.asked} was asked for; {there}",
        remedy="" if truth.macs_share >= LEAST_MACS_SHARE else "see gauntlet targets for what can run here",
    )


def _precise(truth: Truth, expected: Expected, asked: Precision, finest_db: float) -> list[Check]:
    """Return whether the stated precision is the true one; `asked` is the target's, which it must not stay above."""
    if expected.quantized:
        exact = distance_db(expected.answers, expected.reference)
        own = math.isinf(exact)
        value = truth.sqnr_db if own else truth.quality_db
        limit = FLOOR_DB["int8"] if own else exact - SAME_SIMULATION_DB
        detail = "answers of the quantised model, as far from the float model as its own exact arithmetic is"
    else:
        value, limit = truth.sqnr_db, FLOOR_DB[truth.stated]  # type: ignore[index]
        detail = f"{truth.stated} is stated, the answers show {truth.effective}"
    checks = [
        Check(
            name="target.sqnr",
            value=value,
            op=">=",
            limit=limit,
            unit="dB",
            detail=detail,
            remedy="" if value >= limit else WAY_OUT,
        )
    ]
    found = sum(count for kind, count in truth.kernels.items() if kind in INTEGER_KERNELS)
    if truth.kernels and truth.stated != "int8":
        finer = {*ORDER[: ORDER.index(truth.stated) + 1], *(INTEGER_KERNELS if expected.quantized else ())}
        coarse = sum(count for kind, count in truth.kernels.items() if kind in {*ORDER, *INTEGER_KERNELS} - finer)
        checks.append(
            Check(
                name="target.coarse_kernels",
                value=coarse,
                op="<=",
                limit=0,
                detail=f"{truth.stated} is stated, the multiplying kernels are {truth.kernels}",
                remedy=WAY_OUT if coarse else "",
            )
        )
    if truth.stated == "int8" and (truth.kernels or not expected.quantized):
        checks.append(
            Check(
                name="target.integer_kernels",
                value=found,
                op=">=",
                limit=1,
                detail=f"int8 is stated, the multiplying kernels are {truth.kernels or 'unknown'}",
                remedy="" if found else "give it a quantised model",
            )
        )
    elif not expected.quantized and asked in COARSE and asked not in truth.kernels and truth.effective != "unknown":
        checks.append(
            Check(
                name="target.sqnr_above",
                value=finest_db,
                op="<",
                limit=FLOOR_DB["f32"],
                unit="dB",
                detail=f"{asked} is stated, the answers show {truth.effective}",
                remedy="" if finest_db < FLOOR_DB["f32"] else WAY_OUT,
            )
        )
    return checks


def steady(parity_db: float) -> Check:
    """Judge the least distance between a timed answer and the first one."""
    return Check(
        name="target.parity",
        value=parity_db,
        op=">=",
        limit=STEADY_DB,
        unit="dB",
        detail="answers of the timed calls against the first ones",
        remedy="" if parity_db >= STEADY_DB else "the target does not repeat itself; do not ship it",
    )
