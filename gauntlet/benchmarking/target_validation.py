"""Validate a target: where the model ran, in which precision, and whether its outputs are repeatable.

A session that asked for a GPU and got the CPU, or a runtime that computes float32 models in bfloat16, is detected by
its placement and outputs, and is not ranked.
"""

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from gauntlet.benchmarking.expected_outputs import READING_BYTES, ExpectedOutputs, WorkerRun, run_on_worker
from gauntlet.benchmarking.precision import (
    COARSE,
    FINE_TO_COARSE,
    FLOOR_DB,
    LEAST,
    LEAST_F16,
    precision_name,
    worst_sqnr_db,
    write_seven_bit,
)
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.report import Check
from gauntlet.onnx_model.graph import one_line
from gauntlet.runtime.processor import Processor
from gauntlet.runtime.subprocess_runner import run_in_subprocess
from gauntlet.runtime.worker_client import WorkerFailed
from gauntlet.targets.base import BaseTarget, Precision

STEADY_DB = 60.0
LEAST_MACS_SHARE = 0.99
INTEGER_KERNELS = {"i8", "u8"}
FIX = "declare the precision that the target computes in, or use another model"


class TargetValidation(Frozen):
    """One model on one target, validated before it is timed."""

    runtime: str = ""
    error: str | None = Field(None, description="why the target produced no outputs")
    asked: str = Field("", description="requested provider or device")
    nodes: dict[str, int] = Field(default_factory=dict, description="number of nodes by provider or device")
    macs_share: Number = Field(math.nan, description="share of the MACs on the requested provider or device")
    kernels: dict[str, int] = Field(
        default_factory=dict, description="number of multiplying kernels by type, where known"
    )
    stated: str = ""
    effective: str = Field("", description="precision that the outputs imply")
    sqnr_db: Number = Field(math.nan, description="of the outputs, against the same file computed exactly")
    quality_db: Number = Field(math.nan, description="of the outputs, against the reference model")
    checks: tuple[Check, ...] = ()

    @property
    def reason(self) -> str | None:
        """Why it is not ranked, in one line, or None."""
        failed = [check for check in self.checks if check.blocks]
        return self.error or ("; ".join(map(str, failed)) if failed else None)


def validate_target(
    model: Path,
    target: BaseTarget,
    expected: ExpectedOutputs,
    inputs: Path,
    *,
    threads: int,
    timeout_s: float,
    processor: Processor | None = None,
) -> TargetValidation:
    """Run the model on a worker of the target; check where it ran and how exact its outputs are.

    The stated precision is the coarser of the target's and the file's. A quantized model whose sums may saturate on the
    processor (by default, this one) is checked by the same target's outputs with 7-bit weights, whose sums do not:
    which products are added, and so what saturates, depends on the runtime.
    """
    options = target.options() | {"refuse_fallback": False}  # a fallback is detected below, with its share of MACs
    stated = max(target.declared_precision, expected.file.precision, key=FINE_TO_COARSE.index)

    def run(file: Path) -> WorkerRun:
        return run_on_worker(file, target.command(), options, inputs, threads, timeout_s, expected.batches)

    try:
        loaded, placement, answers = run(model)
    except WorkerFailed as error:
        return TargetValidation(stated=stated, error=one_line(error))
    kernels, times = placement.get("kernels", {}), len(answers) // len(expected.answers)
    exact, finest = (
        worst_sqnr_db(answers, expected.answers * times, None if expected.quantized else least)
        for least in (LEAST_F16 if stated == "f16" else LEAST, LEAST)
    )
    truth = TargetValidation(
        runtime=loaded["runtime"],
        asked=placement["asked"],
        nodes={name: len(found) for name, found in placement["nodes"].items()},
        macs_share=expected.file.share(placement["asked"], placement["nodes"]),
        kernels=kernels,
        stated=stated,
        effective=effective_precision(exact, kernels, expected),
        sqnr_db=exact,
        quality_db=worst_sqnr_db(answers, expected.reference * times),
    )
    again = None
    if expected.quantized and truth.quality_db < expected.least_db and (processor or Processor.current()).saturates:
        again = _with_seven_bits(model, expected, inputs, timeout_s, run)
    return truth.replace(checks=(_placed(truth), *_precise(truth, expected, target.declared_precision, finest, again)))


def _with_seven_bits(
    model: Path, expected: ExpectedOutputs, inputs: Path, timeout_s: float, run: Callable[[Path], WorkerRun]
) -> tuple[float, float] | None:
    """Return the quality with 7-bit weights and its limit; None where the weights have 7 bits already, or it fails."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            if not run_in_subprocess(
                write_seven_bit, model, path, timeout_s=timeout_s, memory_bytes=READING_BYTES
            ).value:
                return None
            exact = ExpectedOutputs.of(path, inputs, timeout_s)
            exact = exact if math.isinf(expected.exact_db) else replace(exact, reference=expected.reference)
            answers = run(path)[2]
        except (WorkerFailed, StageError):
            return None
    return worst_sqnr_db(answers, exact.reference * (len(answers) // len(exact.answers))), exact.least_db


def effective_precision(exact_db: float, kernels: Mapping[str, int], expected: ExpectedOutputs) -> str:
    """Return the precision of the computation: from the outputs, or from the kernels where outputs do not show it."""
    if expected.quantized:
        return "int8" if set(kernels) & INTEGER_KERNELS else precision_name(exact_db, kernels) if kernels else "unknown"
    if any(array.dtype.kind == "f" for array in expected.answers):
        return precision_name(exact_db, kernels)
    return max((kind for kind in FINE_TO_COARSE if kind in kernels), key=FINE_TO_COARSE.index, default="unknown")


def _placed(truth: TargetValidation) -> Check:
    placement = ", ".join(f"{count} nodes on {name}" for name, count in truth.nodes.items())
    return Check(
        name="target.macs_share",
        value=truth.macs_share,
        op=">=",
        limit=LEAST_MACS_SHARE,
        detail=f"{truth.asked} was requested; {placement}",
        remedy="" if truth.macs_share >= LEAST_MACS_SHARE else "list the targets that run here with: gauntlet targets",
    )


def _precise(
    truth: TargetValidation,
    expected: ExpectedOutputs,
    asked: Precision,
    finest_db: float,
    seven_bit: tuple[float, float] | None,
) -> list[Check]:
    """Return the checks of the stated precision.

    `asked` is the target's precision, which the outputs must not exceed; `seven_bit` replaces a quantized model's
    quality and limit.
    """
    if expected.quantized:
        value, limit = seven_bit or (truth.quality_db, expected.least_db)
        weights = " with 7-bit weights (8-bit sums may saturate on this processor)" if seven_bit else ""
        detail = f"outputs of the quantized model{weights} against the float model; its exact arithmetic sets the limit"
    else:
        value, limit = truth.sqnr_db, FLOOR_DB[truth.stated]  # type: ignore[index]
        detail = f"{truth.stated} is stated, the outputs show {truth.effective}"
    checks = [
        Check(
            name="target.sqnr",
            value=value,
            op=">=",
            limit=limit,
            unit="dB",
            detail=detail,
            remedy="" if value >= limit else FIX,
        )
    ]
    found = sum(count for kind, count in truth.kernels.items() if kind in INTEGER_KERNELS)
    if truth.kernels and truth.stated != "int8":
        finer = {
            *FINE_TO_COARSE[: FINE_TO_COARSE.index(truth.stated) + 1],
            *(INTEGER_KERNELS if expected.quantized else ()),
        }
        coarse = sum(
            count for kind, count in truth.kernels.items() if kind in {*FINE_TO_COARSE, *INTEGER_KERNELS} - finer
        )
        checks.append(
            Check(
                name="target.coarse_kernels",
                value=coarse,
                op="<=",
                limit=0,
                detail=f"{truth.stated} is stated, the multiplying kernels are {truth.kernels}",
                remedy=FIX if coarse else "",
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
                remedy="" if found else "use a quantized model",
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
                detail=f"{asked} is stated, the outputs show {truth.effective}",
                remedy="" if finest_db < FLOOR_DB["f32"] else FIX,
            )
        )
    return checks


def repeatability_check(repeatability_db: float) -> Check:
    """Check the least SQNR of the timed outputs against the first ones."""
    return Check(
        name="target.repeatability",
        value=repeatability_db,
        op=">=",
        limit=STEADY_DB,
        unit="dB",
        detail="outputs of the timed calls against the first ones",
        remedy="" if repeatability_db >= STEADY_DB else "the outputs are not repeatable; do not deploy on this target",
    )
