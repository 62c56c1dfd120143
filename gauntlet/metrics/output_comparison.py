"""Compare a model's outputs with expected ones at several batch sizes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveInt

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.kinds import kinds
from gauntlet.core.ragged import comparable, paired
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import GoldenCase, first_samples
from gauntlet.metrics.error_metrics import (
    differences,
    max_abs_error,
    max_normalized_error,
    output_scale,
    top1_agreement,
    value_scales,
)
from gauntlet.runtime.batched_inference import batched_inference

NOISE_FACTOR = 4
MANY_VALUES = 50_000_000
"""Of more, an evenly spaced part of the samples says on which scale they are."""
HALF_ROUNDING = 4 * float(np.finfo(np.float16).eps)
"""By how much a float16 output may differ, over its largest magnitude: kernels round in another order."""


class Tolerances(Frozen):
    """Limits on the difference between a model's outputs and expected ones."""

    max_rel_error: float = Field(
        1e-4, ge=0, description="largest difference of a float output over its range, or a tenth of its magnitude"
    )
    min_top1_agreement: float = Field(
        1.0, ge=0, le=1, description="share of samples with the same best class, or equal integers, booleans or strings"
    )
    batch_sizes: tuple[PositiveInt, ...] = Field((1, 2, 3, 7), min_length=1, description="batch sizes to compare at")
    samples: int = Field(32, ge=8, description="real samples to compare; also the number of random ones")

    def error_limit(self, output: str) -> float:
        """Return the largest relative error of an output."""
        return self.max_rel_error

    def agreement_limit(self, output: str) -> float:
        """Return the least share of samples for which an output must agree."""
        return self.min_top1_agreement


class NoisyTolerances(Tolerances):
    """Limits on what is made of a file whose own float outputs differ between batch sizes."""

    errors: dict[str, float] = Field(description="relative error that is allowed, by output")
    agreements: dict[str, float] = Field(description="agreement that suffices, by output")

    def error_limit(self, output: str) -> float:
        """Return the larger of the configured limit and what the noise of this output requires."""
        return max(self.max_rel_error, self.errors.get(output, 0.0))

    def agreement_limit(self, output: str) -> float:
        """Return the smaller of the configured limit and the agreement of this output with itself."""
        return min(self.min_top1_agreement, self.agreements.get(output, 1.0))


class BatchNoise(Frozen):
    """By how much each float output of a file differs between batch sizes: integer and half-precision kernels round."""

    max_rel_error: dict[str, Number] = Field(description="by output")
    min_top1_agreement: dict[str, Number] = Field(description="by output; empty for models that are no classifiers")

    def widen(self, limits: Tolerances, least: float = 0.0) -> Tolerances:
        """Return limits that allow each output four times its own difference: another order of rounding is no fault.

        They allow `least` at least. A difference that is not finite widens nothing.
        """
        errors = {n: max(NOISE_FACTOR * e, least) for n, e in self.max_rel_error.items() if math.isfinite(e)}
        agreements = {name: self.min_top1_agreement[name] for name in errors if name in self.min_top1_agreement}
        return NoisyTolerances.model_validate(limits.model_dump() | {"errors": errors, "agreements": agreements})


class OutputDifference(Frozen):
    """The difference of one output at one batch size."""

    data: str = Field(description="`real`, `random`, or an input size")
    output: str
    batch: int
    max_abs_error: Number
    max_rel_error: Number | None = Field(
        description="over the range of the output, or over a tenth of its largest magnitude where that is more; None "
        "for integers, booleans and strings"
    )
    top1_agreement: Number | None = Field(
        description="share of samples with the same best class, with equal integers, booleans or strings, or with the "
        "expected length; None for floats of fixed length that are not the scores of a classifier"
    )
    rounding: Number = Field(0.0, description="relative error that float16 itself explains; 0 for other types")

    def error_limit(self, limits: Tolerances) -> float:
        """Return the largest relative error that is allowed."""
        return max(limits.error_limit(self.output), self.rounding)

    def within(self, limits: Tolerances) -> bool:
        """Return whether the difference is within the limits."""
        near = self.max_rel_error is None or self.max_rel_error <= self.error_limit(limits)
        return near and (self.top1_agreement is None or self.top1_agreement >= limits.agreement_limit(self.output))

    def text(self, limits: Tolerances) -> str:
        """Return what exceeds the limits, in a few words."""
        place, limit = f"{self.data} inputs, batch {self.batch}", self.error_limit(limits)
        if self.max_rel_error is None or self.max_rel_error <= limit:
            return f"'{self.output}' agrees for {self.top1_agreement:.1%} of the samples ({place})"
        relative = f"{self.max_rel_error:.3g} of its range, allowed {limit:.3g}"
        return f"'{self.output}' changes by {self.max_abs_error:.3g} ({relative}; {place})"


@dataclass(frozen=True)
class WorstSample:
    """The sample with the largest error relative to its output, which is infinite where an output is NaN."""

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

    @property
    def max_abs_error(self) -> float | None:
        """The largest difference of an output; None where none could be compared."""
        return float(np.max([row.max_abs_error for row in self.rows])) if self.rows else None

    def fault(self, limits: Tolerances) -> str:
        """Return what exceeds the limits first, in a few words; empty if nothing does."""
        wrong = (row.text(limits) for row in self.rows if not row.within(limits))
        return self.failures[0] if self.failures else next(wrong, "")


def compare_outputs(
    limits: Tolerances, session: Any, cases: Mapping[str, GoldenCase], signature: Signature | None = None
) -> OutputComparison:
    """Run the first samples of every case at every batch size, and compare with the expected outputs.

    The `signature` tells the output whose largest value is the predicted class, and those that hold a set.
    """
    class_output = signature.class_output if signature else None
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
                require_shapes(actual, expected)
                for ordered in kinds("ordered").values():
                    actual = ordered(actual, expected, signature)
            except StageError as error:
                failures.append(f"{data} inputs, batch {batch}: {error}")
                continue
            rows += [
                output_difference(data, batch, name, actual[name], expected[name], is_class=name == class_output)
                for name in expected
            ]
            worst += [_worst_sample(data, name, actual[name], expected[name]) for name in expected]
    return OutputComparison(tuple(rows), tuple(failures), max(worst, key=lambda w: w.error, default=None))


def batch_noise(
    limits: Tolerances, session: Any, cases: Mapping[str, GoldenCase], signature: Signature | None = None
) -> BatchNoise:
    """Return the difference of a model's float outputs at each batch size from those of all samples in one call.

    Raises:
        StageError: when the model does not run on the inputs.
    """
    own = own_outputs(session, cases, limits.samples)
    errors, agreements = dict[str, float](), dict[str, float]()
    for row in compare_outputs(limits, session, own, signature).rows:
        if row.max_rel_error is None:
            continue
        errors[row.output] = float(np.maximum(errors.get(row.output, 0.0), row.max_rel_error))  # keeps NaN
        if row.top1_agreement is not None:
            agreements[row.output] = min(agreements.get(row.output, 1.0), row.top1_agreement)
    return BatchNoise(max_rel_error=errors, min_top1_agreement=agreements)


def own_outputs(session: Any, cases: Mapping[str, GoldenCase], count: int) -> dict[str, GoldenCase]:
    """Return the first inputs of each case, with the outputs of the session itself for all of them in one call."""
    inputs = {data: first_samples(case.inputs, count) for data, case in cases.items()}
    return {data: GoldenCase(each, batched_inference(session, each).run(count)) for data, each in inputs.items()}


def require_shapes(actual: NamedArrays, expected: NamedArrays) -> None:
    """Raise `StageError` where an expected output is missing, or has another shape."""
    for name, array in expected.items():
        if name not in actual or not comparable([actual[name]], [array]):
            raise StageError(f"'{name}' is {actual[name].shape if name in actual else 'missing'}, not {array.shape}")


def output_difference(
    data: str, batch: int, name: str, actual: Array, expected: Array, *, is_class: bool = False
) -> OutputDifference:
    """Compare one output, shape (n, ...), with the expected one; `is_class` if its largest value is a class.

    Of a ragged one, errors are those of the samples with the expected length.
    """
    actual, expected, alike = paired(actual, expected)
    is_float, agreement = expected.dtype.kind == "f", None if alike is None else float(alike.mean())
    if is_class or not is_float:
        agreement = top1_agreement(actual, expected) if expected.size else 1.0
    if alike is not None:
        actual, expected = actual[alike], expected[alike]
    return OutputDifference(
        data=data,
        output=name,
        batch=batch,
        max_abs_error=max_abs_error(actual, expected),
        max_rel_error=max_normalized_error(actual, expected) if is_float else None,
        top1_agreement=agreement,
        rounding=_half_rounding(expected),
    )


def _half_rounding(expected: Array) -> float:
    """Return the relative error that float16 itself explains; 0 for other types."""
    if expected.dtype != np.float16:
        return 0.0
    magnitude = float(np.max(np.abs(expected), initial=0, where=np.isfinite(expected)))
    return HALF_ROUNDING * magnitude / output_scale(expected)


def _worst_sample(data: str, name: str, actual: Array, expected: Array) -> WorstSample:
    errors = sample_errors(actual, expected)
    index = int(np.argmax(errors))
    return WorstSample(float(errors[index]), data, name, index)


def sample_errors(actual: Array, expected: Array) -> npt.NDArray[np.float64]:
    """Return the largest error of each sample over the scale of its values; infinite for NaN and for other lengths."""
    actual, expected, _ = paired(actual, expected)
    pairs = zip(actual, expected, strict=True)
    if expected.dtype.kind == "U":
        return np.array([max_abs_error(*pair) for pair in pairs])
    scales = value_scales(expected[:: 1 + expected.size // MANY_VALUES])[0]
    errors = [np.max(np.abs(differences(*pair)) / scales, initial=0.0) for pair in pairs]  # float64, one at a time
    return np.asarray(np.nan_to_num(errors, nan=np.inf))


def differing(limits: Tolerances, output: str, actual: Array, expected: Array) -> npt.NDArray[np.bool_]:
    """Return which of very many samples differ by more than ten times the limit; some amplify rounding more."""
    limit = max(10 * limits.error_limit(output), _half_rounding(expected)) if expected.dtype.kind == "f" else 0.0
    return np.asarray(sample_errors(actual, expected) > limit)
