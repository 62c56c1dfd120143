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
from tasks.errors import StageError
from tasks.frozen import Frozen, JsonObject, Number
from tasks.report import Check
from tasks.runtime.graph import one_line
from tasks.runtime.node_macs import read_model
from tasks.runtime.sandbox import ChildFailed, run_apart
from tasks.statistics import Array, sqnr_db
from tasks.targets.base import BaseTarget, Precision
from tasks.targets.ort_cpu import OrtCpu

FLOOR_DB: dict[Precision, float] = {"f32": 90.0, "tf32": 57.0, "f16": 57.0, "bf16": 35.0, "int8": 20.0}
"""Least signal to noise of answers that were computed in a precision. Between float32 (about 127 dB were measured) and
the next coarser ones, with 10 bits of mantissa, there is nothing; bfloat16, with 7 bits, was measured at 46 to 53."""
NAMES = (("f32", FLOOR_DB["f32"]), ("tf32 or f16", FLOOR_DB["f16"]), ("bf16", FLOOR_DB["bf16"]))
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
    quantized: bool
    macs: dict[str, tuple[str, int]]

    @classmethod
    def of(cls, model: Path, inputs: Path, timeout_s: float, reference: "Expected | None" = None) -> "Expected":
        """Compute them, in other processes; without a reference, the model is its own.

        Raises:
            StageError: when the file is no model, or the runtime refuses it or the inputs, or breaks.
        """
        exact = OrtCpu(level="off")
        try:
            quantized, macs = run_apart(read_model, model, timeout_s=timeout_s, memory_bytes=READING_BYTES).value
            loaded, _, answers = _ask(model, exact.command(), exact.options(), inputs, threads=1, timeout_s=timeout_s)
        except (WorkerFailed, ChildFailed) as error:
            raise StageError(f"{model}: {one_line(error)}") from error
        return cls(answers, reference.answers if reference else answers, loaded["fixed_batch"], quantized, macs)


def _ask(
    model: Path, command: tuple[str, ...], options: JsonObject, inputs: Path, *, threads: int, timeout_s: float
) -> tuple[dict[str, Any], dict[str, Any], list[Array]]:
    """Return what a new worker says of loading, of the placement, and its answers to all inputs, one at a time."""
    with WorkerClient(command) as worker, tempfile.TemporaryDirectory() as folder:
        loaded = worker.load(model, inputs, threads, timeout_s, options)
        placement = worker.ask({"do": "placement"}, timeout_s)
        path = Path(folder) / "answers.npz"
        names = worker.ask({"do": "answers", "batch": 1, "path": str(path)}, timeout_s)["outputs"]
        with np.load(path, allow_pickle=False) as file:
            return loaded, placement, [file[name] for name in names]


def examine(
    model: Path, target: BaseTarget, expected: Expected, inputs: Path, *, threads: int, timeout_s: float
) -> Truth:
    """Let a worker of the target load the model and answer; judge where it ran and how exact it was."""
    options = target.options() | {"refuse_fallback": False}  # it is found below, and told with a number
    try:
        loaded, placement, answers = _ask(
            model, target.command(), options, inputs, threads=threads, timeout_s=timeout_s
        )
    except WorkerFailed as error:
        return Truth(stated=target.stated, error=one_line(error))
    share = macs_share(placement, expected.macs)
    exact, quality = distance_db(answers, expected.answers), distance_db(answers, expected.reference)
    truth = Truth(
        runtime=loaded["runtime"],
        asked=placement["asked"],
        nodes={name: len(found) for name, found in placement["nodes"].items()},
        macs_share=share,
        kernels=placement.get("kernels", {}),
        stated=target.stated,
        effective="int8" if expected.quantized else named(exact, placement.get("kernels", {})),
        sqnr_db=exact,
        quality_db=quality,
    )
    return truth.replace(checks=(_placed(truth), *_precise(truth, expected)))


def macs_share(placement: dict[str, Any], macs: dict[str, tuple[str, int]]) -> float:
    """Return the share of multiplications on what was asked for; of nodes, where the model does not multiply.

    What is not found elsewhere is there: a provider that compiles a part of the graph shows it as one node. A node
    whose name the runtime changed counts as the average of its kind.
    """
    asked, nodes = placement["asked"], placement["nodes"]
    if not nodes.get(asked):
        return 0.0
    total = sum(count for _, count in macs.values())
    elsewhere = [node for name, found in nodes.items() if name != asked for node in found]
    if not total:
        return len(nodes[asked]) / (len(nodes[asked]) + len(elsewhere))
    return 1 - sum(_macs(name, kind, macs) for name, kind in elsewhere) / total


def _macs(name: str, kind: str, macs: dict[str, tuple[str, int]]) -> float:
    if name in macs:
        return macs[name][1]
    same = [count for operator, count in macs.values() if operator.removeprefix("Fused") == kind.removeprefix("Fused")]
    return sum(same) / len(same) if same else 0.0


def distance_db(answers: Sequence[Array], expected: Sequence[Array]) -> float:
    """Return the least signal to noise ratio of any output; NaN where outputs are missing or of another shape.

    Only floats count where there are any: a class or an index that differs says nothing of the precision.
    """
    if [array.shape for array in answers] != [array.shape for array in expected]:
        return math.nan
    pairs = list(zip(answers, expected, strict=True))
    floats = [pair for pair in pairs if pair[1].dtype.kind == "f"]
    if not floats:
        return math.inf if all(np.array_equal(*pair) for pair in pairs) else -math.inf
    return min((sqnr_db(*pair) for pair in floats), key=lambda value: -math.inf if math.isnan(value) else value)


def named(value_db: float, kernels: Mapping[str, int]) -> str:
    """Return the precision that answers at this distance were computed in; the kernels' own word, where it is coarser.

    A network that averages much hides the difference between the coarse ones, never that there is one to float32.
    """
    place = next((place for place, (_, floor) in enumerate(NAMES) if value_db >= floor), None)
    if place is None:
        return "less than bf16"
    coarse = [name for name, _ in NAMES[place:] if set(kernels) & set(name.split(" or "))]
    return coarse[-1] if coarse else NAMES[place][0]


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


def _precise(truth: Truth, expected: Expected) -> list[Check]:
    """Return whether the stated precision is the true one."""
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
    if truth.stated == "int8":
        found = sum(count for kind, count in truth.kernels.items() if kind in INTEGER_KERNELS)
        known = found if truth.kernels else int(expected.quantized)
        checks.append(
            Check(
                name="target.integer_kernels",
                value=known,
                op=">=",
                limit=1,
                detail=f"int8 is stated, the multiplying kernels are {truth.kernels or 'unknown'}",
                remedy="" if known else "give it a quantised model",
            )
        )
    elif not expected.quantized and truth.stated in ("bf16", "f16", "tf32"):
        checks.append(
            Check(
                name="target.sqnr_above",
                value=value,
                op="<",
                limit=FLOOR_DB["f32"],
                unit="dB",
                detail=f"{truth.stated} is stated, the answers show {truth.effective}",
                remedy="" if value < FLOOR_DB["f32"] else WAY_OUT,
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
