"""How near one model's answers are to others that are known, at every batch size."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field, PositiveInt

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.datasets.golden import GoldenCase, first_samples
from gauntlet.metrics.error_metrics import max_abs_error, max_rel_error, top1_agreement
from gauntlet.runtime.batched_inference import batched_inference


class Tolerances(Frozen):
    """How near the outputs of a model must be to known ones."""

    max_abs_error: float = Field(1e-4, ge=0, description="largest absolute difference of an output value")
    max_rel_error: float = Field(1e-4, ge=0, description="largest difference over the output's largest magnitude")
    min_top1_agreement: float = Field(1.0, ge=0, le=1, description="share of samples with the same best class")
    batch_sizes: tuple[PositiveInt, ...] = Field((1, 2, 3, 7), min_length=1, description="each is tried")
    samples: int = Field(32, ge=8, description="real samples to compare; as many random ones as there are")


class OutputDifference(Frozen):
    """One output at one batch size."""

    data: str = Field(description="real, random, or the size that was tried")
    output: str
    batch: int
    max_abs_error: Number
    max_rel_error: Number
    top1_agreement: Number

    def within(self, limits: Tolerances) -> bool:
        """Tell whether the difference is allowed."""
        near = self.max_abs_error <= limits.max_abs_error and self.max_rel_error <= limits.max_rel_error
        return near and self.top1_agreement >= limits.min_top1_agreement


@dataclass(frozen=True)
class WorstSample:
    """The sample with the largest error; the error is infinite where it is NaN."""

    error: float
    data: str
    output: str
    sample: int


@dataclass(frozen=True)
class OutputComparison:
    """How near a model is: what was compared, and what could not be."""

    rows: tuple[OutputDifference, ...]
    failures: tuple[str, ...]
    worst: WorstSample | None


def compare_outputs(limits: Tolerances, session: Any, cases: Mapping[str, GoldenCase]) -> OutputComparison:
    """Run every case's first samples at every batch size, and compare with the case's outputs."""
    rows: list[OutputDifference] = []
    complaints: list[str] = []
    found: list[WorstSample] = []
    for data, case in cases.items():
        inputs, expected = first_samples(case.inputs, limits.samples), first_samples(case.outputs, limits.samples)
        try:
            prepared = batched_inference(session, inputs)
        except StageError as error:
            complaints.append(f"{data} inputs: {error}")
            continue
        for batch in dict.fromkeys(prepared.batch(size) for size in limits.batch_sizes):
            try:
                actual = prepared.run(batch)
            except StageError as error:
                complaints.append(f"{data} inputs, batch {batch}: {error}")
                continue
            wrong = [name for name in expected if name not in actual or actual[name].shape != expected[name].shape]
            if wrong:
                shape = actual[wrong[0]].shape if wrong[0] in actual else "missing"
                text = f"{data} inputs, batch {batch}: '{wrong[0]}' is {shape}, not {expected[wrong[0]].shape}"
                complaints.append(text)
                continue
            rows += [output_difference(data, batch, name, actual[name], expected[name]) for name in expected]
            found += [_worst_sample(data, name, actual, expected) for name in expected]
    return OutputComparison(tuple(rows), tuple(complaints), max(found, key=lambda w: w.error, default=None))


def output_difference(data: str, batch: int, name: str, actual: Array, expected: Array) -> OutputDifference:
    """Compare one output, shape (n, ...), with what it should be."""
    return OutputDifference(
        data=data,
        output=name,
        batch=batch,
        max_abs_error=max_abs_error(actual, expected),
        max_rel_error=max_rel_error(actual, expected),
        top1_agreement=top1_agreement(actual, expected),
    )


def _worst_sample(data: str, name: str, actual: NamedArrays, expected: NamedArrays) -> WorstSample:
    errors = np.array([max_abs_error(a, b) for a, b in zip(actual[name], expected[name], strict=True)])
    errors = np.where(np.isnan(errors), np.inf, errors)
    index = int(np.argmax(errors))
    return WorstSample(float(errors[index]), data, name, index)
