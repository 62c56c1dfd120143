"""Validate a target: where the model ran, in which precision, and whether its outputs are repeatable.

A session that asked for a GPU and got the CPU, or a runtime that computes float32 models in bfloat16, is detected by
its placement and outputs, and is not ranked.
"""

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import Field

from gauntlet.core.errors import StageError, one_line
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.report import Check
from gauntlet.metrics.output_noise import worst_noise_db
from gauntlet.race.expected_outputs import READING_BYTES, ExpectedOutputs, WorkerRun, run_on_worker
from gauntlet.race.precision import (
    FINE_TO_COARSE,
    FLOOR_DB,
    floors_db,
    precision_name,
    worst_sqnr_db,
    write_bf16_weights,
    write_seven_bit,
)
from gauntlet.runtime.processor import Processor
from gauntlet.runtime.subprocess_runner import run_in_subprocess
from gauntlet.runtime.worker_client import WorkerFailed
from gauntlet.targets.base import BaseTarget, Precision

MIN_REPEATABILITY_DB = 60.0
MIN_MACS_SHARE = 0.99
COARSE = {"tf32", "f16", "bf16"}
LEAST, MIN_F16 = 1e-30, float(np.finfo(np.float16).tiny)
"""Smaller probabilities count as equal: near the smallest numbers of a precision."""
INTEGER_KERNELS = {"i8", "u8"}
SLICES_SQNR = "target.slices_sqnr"
FIX = "declare the precision that the target computes in, or use another model"


class Validation(Frozen):
    """One model on one target, validated before it is timed."""

    runtime: str = ""
    error: str | None = Field(None, description="why the target produced no outputs")
    asked: str = Field("", description="requested provider or device")
    nodes: dict[str, int] = Field(default_factory=dict, description="number of nodes by provider or device")
    macs_share: Number = Field(
        math.nan, description="share of the MACs on the requested provider or device, or on all of a hybrid target's"
    )
    macs_shares: dict[str, Number] = Field(default_factory=dict, description="by provider or device that has nodes")
    kernels: dict[str, int] = Field(default_factory=dict, description="multiplying kernels by type, where known")
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
    batch_sizes: Sequence[int] = (),
) -> Validation:
    """Run the model on a worker of the target; check where it ran and how exact its outputs are.

    Where the outputs are not clearly float32, the limits depend on how much the network amplifies rounding errors: what
    bfloat16 weights change. A quantized model whose sums may saturate on the processor is checked by the same target's
    outputs with 7-bit weights, whose sums do not. `batch_sizes` are run besides one and all.
    """
    options = target.options() | {"refuse_fallback": False}  # a fallback is detected below, with its share of MACs
    stated = max(target.declared_precision, expected.file.precision, key=FINE_TO_COARSE.index)
    batches = (*expected.batches, *(size for size in batch_sizes if 1 < size < expected.batches[-1]))

    def run(file: Path) -> WorkerRun:
        return run_on_worker(file, target.command(), options, inputs, threads, timeout_s, batches)

    try:
        loaded, placement, outputs = run(model)
    except WorkerFailed as error:
        return Validation(stated=stated, error=one_line(error))
    kernels, times = placement.get("kernels", {}), len(outputs) // len(expected.outputs)
    exact, finest = (
        worst_sqnr_db(outputs, expected.outputs * times, None if expected.quantized else least)
        for least in (_least(stated), LEAST)
    )
    amplifies = not expected.quantized and finest < FLOOR_DB["f32"]
    floors = floors_db(_rounded_sqnr_db(model, expected, inputs, timeout_s, stated) if amplifies else math.inf)
    shares = expected.file.shares(placement["asked"], placement["nodes"])
    accepted = placement.get("accepted", [placement["asked"]])  # several with hybrid placement
    validation = Validation(
        runtime=loaded["runtime"],
        asked=placement["asked"],
        nodes={name: len(group) for name, group in placement["nodes"].items()},
        macs_share=sum(shares.get(provider, 0.0) for provider in accepted),
        macs_shares=shares,
        kernels=kernels,
        stated=stated,
        effective=effective_precision(exact, kernels, expected, floors),
        sqnr_db=exact,
        quality_db=worst_sqnr_db(outputs, expected.reference * times),
    )
    if expected.quantized:
        may_saturate = validation.quality_db < expected.least_db and (processor or Processor.current()).saturates
        seven_bit = _seven_bit_quality(model, expected, inputs, timeout_s, run) if may_saturate else None
        slices_db = worst_noise_db(outputs, expected.reference * times)
        noise, too_fine = _quantized_checks(validation, slices_db, expected, seven_bit), list[Check]()
    else:
        exact_enough, *too_fine = _float_checks(validation, stated, target.declared_precision, finest, floors)
        noise = [exact_enough]
    placed = [_placement_check(validation), *([_used_check(validation)] if len(accepted) > 1 else [])]
    kernel_checks = _kernel_checks(validation, stated, expected.quantized)
    return validation.replace(checks=(*placed, *noise, *kernel_checks, *too_fine))


def _seven_bit_quality(
    model: Path, expected: ExpectedOutputs, inputs: Path, timeout_s: float, run: Callable[[Path], WorkerRun]
) -> tuple[float, float] | None:
    """Return the quality with 7-bit weights and its limit; None where the weights have 7 bits already, or it fails."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            done = run_in_subprocess(write_seven_bit, model, path, timeout_s=timeout_s, memory_bytes=READING_BYTES)
            if not done.value:
                return None
            exact = ExpectedOutputs.of(path, inputs, timeout_s)
            exact = exact if math.isinf(expected.exact_db) else replace(exact, reference=expected.reference)
            outputs = run(path)[2]
        except (WorkerFailed, StageError):
            return None
    return worst_sqnr_db(outputs, exact.reference * (len(outputs) // len(exact.outputs))), exact.least_db


def _least(stated: Precision) -> float:
    return MIN_F16 if stated == "f16" else LEAST


def _rounded_sqnr_db(
    model: Path, expected: ExpectedOutputs, inputs: Path, timeout_s: float, stated: Precision
) -> float:
    """Return the SQNR of the exact outputs with weights rounded to bfloat16; infinite where there are none to round."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            done = run_in_subprocess(write_bf16_weights, model, path, timeout_s=timeout_s, memory_bytes=READING_BYTES)
            if not done.value:
                return math.inf
            outputs = ExpectedOutputs.of(path, inputs, timeout_s).outputs
        except StageError:
            return math.inf
    value = worst_sqnr_db(outputs, expected.outputs, _least(stated))
    return value if math.isfinite(value) else math.inf


def effective_precision(
    exact_db: float, kernels: Mapping[str, int], expected: ExpectedOutputs, floors: Mapping[Precision, float] = FLOOR_DB
) -> str:
    """Return the precision of the computation: from the outputs, or from the kernels where outputs do not show it."""
    if expected.quantized:
        return "int8" if set(kernels) & INTEGER_KERNELS else precision_name(exact_db, kernels) if kernels else "unknown"
    if any(array.dtype.kind == "f" for array in expected.outputs):
        return precision_name(exact_db, kernels, floors)
    return max((kind for kind in FINE_TO_COARSE if kind in kernels), key=FINE_TO_COARSE.index, default="unknown")


def _placement_check(validation: Validation) -> Check:
    shares = validation.macs_shares
    placement = ", ".join(
        f"{count} nodes on {name} ({shares.get(name, 0):.1%} of the MACs)" for name, count in validation.nodes.items()
    )
    detail = f"{validation.asked} was requested; {placement}"
    fix = "list the targets that run here with: gauntlet targets"
    return Check.of("target.macs_share", validation.macs_share, ">=", MIN_MACS_SHARE, detail, fix)


def _used_check(validation: Validation) -> Check:
    """Check that the first provider of a hybrid target has a part of the work."""
    detail = f"{validation.asked} comes first, and runs nothing that multiplies"
    share = validation.macs_shares.get(validation.asked, 0.0)
    return Check.of("target.first_share", share, ">", 0, detail, "remove it from the target's providers")


def _quantized_checks(
    validation: Validation, slices_db: float, expected: ExpectedOutputs, seven_bit: tuple[float, float] | None
) -> list[Check]:
    """Check the noise of all values, then that of the worst slices unless 8-bit sums saturate here."""
    value, limit = seven_bit or (validation.quality_db, expected.least_db)
    weights = " with 7-bit weights (8-bit sums may saturate on this processor)" if seven_bit else ""
    detail = f"outputs of the quantized model{weights} against the float model; its exact arithmetic sets the limit"
    whole = Check.of("target.sqnr", value, ">=", limit, detail, FIX, unit="dB")
    if not whole.passed or seven_bit is not None:
        return [whole]
    detail = "the worst slices of an output, against the float model; its exact arithmetic sets the limit"
    return [whole, Check.of(SLICES_SQNR, slices_db, ">=", expected.least_slices_db, detail, FIX, unit="dB")]


def _kernel_checks(validation: Validation, stated: Precision, quantized: bool) -> Iterator[Check]:
    """Yield the checks of the multiplying kernels: none coarser than stated, and integer ones where stated."""
    kernels = validation.kernels
    detail = f"{stated} is stated, the multiplying kernels are {kernels or 'unknown'}"
    if kernels and stated != "int8":
        finer = {*FINE_TO_COARSE[: FINE_TO_COARSE.index(stated) + 1], *(INTEGER_KERNELS if quantized else ())}
        coarse = {*FINE_TO_COARSE, *INTEGER_KERNELS} - finer
        count = sum(kernels.get(kind, 0) for kind in coarse)
        yield Check.of("target.coarse_kernels", count, "<=", 0, detail, FIX)
    if stated == "int8" and (kernels or not quantized):
        count = sum(kernels.get(kind, 0) for kind in INTEGER_KERNELS)
        yield Check.of("target.integer_kernels", count, ">=", 1, detail, "use a quantized model")


def _float_checks(
    validation: Validation, stated: Precision, declared: Precision, finest_db: float, floors: Mapping[Precision, float]
) -> Iterator[Check]:
    """Yield the check that outputs are as exact as stated; then, if no kernel shows it, no more than declared."""
    detail = f"{stated} is stated, the outputs show {validation.effective}"
    yield Check.of("target.sqnr", validation.sqnr_db, ">=", floors[stated], detail, FIX, unit="dB")
    unseen = declared not in validation.kernels and validation.effective != "unknown"
    if declared in COARSE and unseen and stated != "int8":
        detail = f"{declared} is stated, the outputs show {validation.effective}"
        yield Check.of("target.sqnr_above", finest_db, "<", floors["f32"], detail, FIX, unit="dB")


def repeatability_check(repeatability_db: float) -> Check:
    """Check the least SQNR of the timed outputs against the first ones."""
    detail = "outputs of the timed calls against the first ones"
    fix = "the outputs are not repeatable; do not deploy on this target"
    return Check.of("target.repeatability", repeatability_db, ">=", MIN_REPEATABILITY_DB, detail, fix, unit="dB")
