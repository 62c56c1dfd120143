"""Compare a model's outputs with expected ones at several batch sizes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from pydantic import Field, PositiveInt

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.datasets.golden import GoldenCase, first_samples
from gauntlet.metrics.error_metrics import max_abs_error, max_rel_error, top1_agreement
from gauntlet.runtime.batched_inference import batched_inference

NOISE_FACTOR = 4


class Tolerances(Frozen):
    """Limits on the difference between a model's outputs and expected ones."""

    max_abs_error: float = Field(1e-4, ge=0, description="largest absolute difference of an output value")
    max_rel_error: float = Field(1e-4, ge=0, description="largest difference over the output's largest magnitude")
    min_top1_agreement: float = Field(1.0, ge=0, le=1, description="share of samples with the same best class")
    batch_sizes: tuple[PositiveInt, ...] = Field((1, 2, 3, 7), min_length=1, description="batch sizes to compare at")
    samples: int = Field(32, ge=8, description="real samples to compare; also the number of random ones")


Limits = TypeVar("Limits", bound=Tolerances)


class BatchNoise(Frozen):
    """By how much the outputs of one file differ between batch sizes: integer and half-precision kernels round."""

    max_abs_error: Number
    max_rel_error: Number
    min_top1_agreement: Number

    def widen(self, limits: Limits) -> Limits:
        """Return limits that allow four times this difference: another order of rounding is no fault."""
        return limits.replace(
            max_abs_error=max(limits.max_abs_error, NOISE_FACTOR * float(self.max_abs_error)),
            max_rel_error=max(limits.max_rel_error, NOISE_FACTOR * float(self.max_rel_error)),
            min_top1_agreement=min(limits.min_top1_agreement, float(self.min_top1_agreement)),
        )


class OutputDifference(Frozen):
    """The difference of one output at one batch size."""

    data: str = Field(description="`real`, `random`, or an input size")
    output: str
    batch: int
    max_abs_error: Number
    max_rel_error: Number
    top1_agreement: Number

    def within(self, limits: Tolerances) -> bool:
        """Return whether the difference is within the limits."""
        near = self.max_abs_error <= limits.max_abs_error and self.max_rel_error <= limits.max_rel_error
        return near and self.top1_agreement >= limits.min_top1_agreement


@dataclass(frozen=True)
class WorstSample:
    """The sample with the largest error, which is infinite where an output is NaN."""

    error: float
    data: str
    output: str
    sample: int


@dataclass(frozen=True)
class OutputComparison:
    """All differences, why some outputs could not be compared, and the worst sample."""

    rows: tuple[OutputDifference, ...]
    failures: tuple[str, ...]
    worst: WorstSample | None


def compare_outputs(limits: Tolerances, session: Any, cases: Mapping[str, GoldenCase]) -> OutputComparison:
    """Run the first samples of every case at every batch size, and compare with the expected outputs."""
    rows: list[OutputDifference] = []
    failures: list[str] = []
    worst: list[WorstSample] = []
    for data, case in cases.items():
        inputs, expected = first_samples(case.inputs, limits.samples), first_samples(case.outputs, limits.samples)
        try:
            inference = batched_inference(session, inputs)
        except StageError as error:
            failures.append(f"{data} inputs: {error}")
            continue
        for batch in dict.fromkeys(inference.batch(size) for size in limits.batch_sizes):
            try:
                actual = inference.run(batch)
                _require_shapes(actual, expected)
            except StageError as error:
                failures.append(f"{data} inputs, batch {batch}: {error}")
                continue
            rows += [output_difference(data, batch, name, actual[name], expected[name]) for name in expected]
            worst += [_worst_sample(data, name, actual[name], expected[name]) for name in expected]
    return OutputComparison(tuple(rows), tuple(failures), max(worst, key=lambda w: w.error, default=None))


def batch_noise(limits: Tolerances, session: Any, cases: Mapping[str, GoldenCase]) -> BatchNoise:
    """Return the difference of a model's outputs at each batch size from those of all samples in one call.

    Raises:
        StageError: when the model does not run on the inputs.
    """
    own = {}
    for data, case in cases.items():
        inputs = first_samples(case.inputs, limits.samples)
        own[data] = GoldenCase(inputs, batched_inference(session, inputs).run(limits.samples))
    rows = compare_outputs(limits, session, own).rows
    return BatchNoise(
        max_abs_error=max((row.max_abs_error for row in rows), default=0),
        max_rel_error=max((row.max_rel_error for row in rows), default=0),
        min_top1_agreement=min((row.top1_agreement for row in rows), default=1),
    )


def _require_shapes(actual: NamedArrays, expected: NamedArrays) -> None:
    for name, array in expected.items():
        shape = actual[name].shape if name in actual else "missing"
        if shape != array.shape:
            raise StageError(f"'{name}' is {shape}, not {array.shape}")


def output_difference(data: str, batch: int, name: str, actual: Array, expected: Array) -> OutputDifference:
    """Compare one output, shape (n, ...), with the expected one."""
    return OutputDifference(
        data=data,
        output=name,
        batch=batch,
        max_abs_error=max_abs_error(actual, expected),
        max_rel_error=max_rel_error(actual, expected),
        top1_agreement=top1_agreement(actual, expected),
    )


def _worst_sample(data: str, name: str, actual: Array, expected: Array) -> WorstSample:
    errors = np.array([max_abs_error(a, b) for a, b in zip(actual, expected, strict=True)])
    errors = np.where(np.isnan(errors), np.inf, errors)
    index = int(np.argmax(errors))
    return WorstSample(float(errors[index]), data, name, index)
