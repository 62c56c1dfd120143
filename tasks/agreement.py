"""How near one model's answers are to others that are known, at every batch size."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field, PositiveInt

from tasks.data.dataset import Arrays
from tasks.data.golden import Case, head
from tasks.errors import StageError
from tasks.frozen import Frozen, Number
from tasks.runtime.calls import calls
from tasks.statistics import Array, max_abs_error, max_rel_error, top1_agreement


class NumericsConfig(Frozen):
    """How near the ONNX model must be to its source."""

    max_abs_error: float = Field(1e-4, ge=0, description="largest absolute difference of an output value")
    max_rel_error: float = Field(1e-4, ge=0, description="largest difference over the output's largest magnitude")
    min_top1_agreement: float = Field(1.0, ge=0, le=1, description="share of samples with the same best class")
    batch_sizes: tuple[PositiveInt, ...] = Field((1, 2, 3, 7), min_length=1, description="each is tried")
    samples: int = Field(32, ge=8, description="real samples to compare; as many random ones as there are")


class Comparison(Frozen):
    """One output at one batch size."""

    data: str = Field(description="real, random, or the size that was tried")
    output: str
    batch: int
    max_abs_error: Number
    max_rel_error: Number
    top1_agreement: Number

    def within(self, limits: NumericsConfig) -> bool:
        """Tell whether the difference is allowed."""
        near = self.max_abs_error <= limits.max_abs_error and self.max_rel_error <= limits.max_rel_error
        return near and self.top1_agreement >= limits.min_top1_agreement


@dataclass(frozen=True)
class Worst:
    """The sample with the largest error; the error is infinite where it is NaN."""

    error: float
    data: str
    output: str
    sample: int


@dataclass(frozen=True)
class Agreement:
    """How near a model is: what was compared, and what could not be."""

    rows: tuple[Comparison, ...]
    complaints: tuple[str, ...]
    worst: Worst | None


def agreement(limits: NumericsConfig, session: Any, cases: Mapping[str, Case]) -> Agreement:
    """Run every case's first samples at every batch size, and compare with the case's outputs."""
    rows: list[Comparison] = []
    complaints: list[str] = []
    found: list[Worst] = []
    for data, case in cases.items():
        inputs, expected = head(case.inputs, limits.samples), head(case.outputs, limits.samples)
        try:
            prepared = calls(session, inputs)
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
            rows += [compare(data, batch, name, actual[name], expected[name]) for name in expected]
            found += [_worst_sample(data, name, actual, expected) for name in expected]
    return Agreement(tuple(rows), tuple(complaints), max(found, key=lambda w: w.error, default=None))


def compare(data: str, batch: int, name: str, actual: Array, expected: Array) -> Comparison:
    """Compare one output, shape (n, ...), with what it should be."""
    return Comparison(
        data=data,
        output=name,
        batch=batch,
        max_abs_error=max_abs_error(actual, expected),
        max_rel_error=max_rel_error(actual, expected),
        top1_agreement=top1_agreement(actual, expected),
    )


def _worst_sample(data: str, name: str, actual: Arrays, expected: Arrays) -> Worst:
    errors = np.array([max_abs_error(a, b) for a, b in zip(actual[name], expected[name], strict=True)])
    errors = np.where(np.isnan(errors), np.inf, errors)
    index = int(np.argmax(errors))
    return Worst(float(errors[index]), data, name, index)
