"""Gate on the numbers: the model must compute what its source computed, at every batch size."""

import numpy as np
from pydantic import Field, PositiveInt

from tasks.artifact import Artifact
from tasks.data.dataset import Arrays
from tasks.data.golden import RANDOM, REAL, Golden, head
from tasks.errors import StageError
from tasks.frozen import Frozen, Number
from tasks.report import Check, Report
from tasks.runtime.calls import calls
from tasks.runtime.session import open_session
from tasks.statistics import max_abs_error, max_rel_error, top1_agreement
from tasks.validate.divergence import first_divergence
from tasks.workspace import Workspace


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


class NumericsFacts(Frozen):
    """How near the model is to its source."""

    samples: dict[str, int]
    comparisons: tuple[Comparison, ...]
    worst_sample: int | None = Field(description="index of the real or random sample with the largest error")
    first_divergence: str | None = Field(description="where a failing model leaves the source's way")


def check_numerics(
    config: NumericsConfig, out: Workspace, *, model: Artifact, golden: Artifact
) -> Report[NumericsFacts]:
    """Compare the model's outputs with the golden ones, on real inputs and on random ones."""
    reference = Golden.load(out.path(golden))
    session = open_session(out.path(model))
    cases = {
        title: (head(case.inputs, config.samples), head(case.outputs, config.samples))
        for title, case in reference.cases.items()
    }
    rows: list[Comparison] = []
    errors: list[str] = []
    worst: tuple[float, str, str, int] = (-1.0, "", "", 0)
    for data, (inputs, expected) in cases.items():
        try:
            prepared = calls(session, inputs)
        except StageError as error:
            errors.append(f"{data} inputs: {error}")
            continue
        for batch in dict.fromkeys(prepared.batch(size) for size in config.batch_sizes):
            try:
                actual = prepared.run(batch)
            except StageError as error:
                errors.append(f"{data} inputs, batch {batch}: {error}")
                continue
            wrong = [name for name in expected if name not in actual or actual[name].shape != expected[name].shape]
            if wrong:
                shape = actual[wrong[0]].shape if wrong[0] in actual else "missing"
                errors.append(f"{data} inputs, batch {batch}: '{wrong[0]}' is {shape}, not {expected[wrong[0]].shape}")
                continue
            rows += [_compare(data, batch, name, actual, expected) for name in expected]
            worst = max([worst, *(_worst_sample(data, name, actual, expected) for name in expected)])
    checks: tuple[Check, ...] = (
        Check(
            name="numerics.failed_batches",
            value=len(errors),
            op="==",
            limit=0,
            detail=errors[0] if errors else "",
            remedy="export with dynamic axes for whatever may change: batch, height, width" if errors else "",
        ),
        _limit("max_abs_error", [r.max_abs_error for r in rows], "<=", config.max_abs_error, worst),
        _limit("max_rel_error", [r.max_rel_error for r in rows], "<=", config.max_rel_error, worst),
        _limit("min_top1_agreement", [r.top1_agreement for r in rows], ">=", config.min_top1_agreement, worst),
    )
    divergence = None
    if not all(check.passed for check in checks):
        divergence = first_divergence(out.path(model), reference, config.max_rel_error)
        checks = tuple(_with_place(check, divergence, _wrong_sizes(config, rows)) for check in checks)
    facts = NumericsFacts(
        samples={data: len(next(iter(inputs.values()))) for data, (inputs, _) in cases.items()},
        comparisons=tuple(rows),
        worst_sample=worst[3] if worst[0] >= 0 else None,
        first_divergence=divergence,
    )
    return Report(stage="numerics", facts=facts, checks=checks)


def _compare(data: str, batch: int, name: str, actual: Arrays, expected: Arrays) -> Comparison:
    a, b = actual[name], expected[name]
    return Comparison(
        data=data,
        output=name,
        batch=batch,
        max_abs_error=max_abs_error(a, b),
        max_rel_error=max_rel_error(a, b),
        top1_agreement=top1_agreement(a, b),
    )


def _worst_sample(data: str, name: str, actual: Arrays, expected: Arrays) -> tuple[float, str, str, int]:
    errors = np.array([max_abs_error(a, b) for a, b in zip(actual[name], expected[name], strict=True)])
    index = int(np.argmax(np.where(np.isnan(errors), np.inf, errors)))
    error = float(errors[index])
    return (np.inf if np.isnan(error) else error, data, name, index)


def _limit(name: str, values: list[float], op: str, limit: float, worst: tuple[float, str, str, int]) -> Check:
    value = (float(np.max(values)) if op == "<=" else float(np.min(values))) if values else None
    _, data, output, sample = worst
    return Check(
        name=f"numerics.{name}",
        value=value,
        op=op,
        limit=limit,
        detail=f"worst output '{output}', {data} sample {sample}" if values else "nothing could be compared",
    )


def _wrong_sizes(config: NumericsConfig, rows: list[Comparison]) -> list[str]:
    """Return the sizes that the model takes and answers wrongly, when it is right at the size of the data."""

    def right(row: Comparison) -> bool:
        near = row.max_abs_error <= config.max_abs_error and row.max_rel_error <= config.max_rel_error
        return near and row.top1_agreement >= config.min_top1_agreement

    wrong = list(dict.fromkeys(row.data for row in rows if not right(row)))
    return [] if {REAL, RANDOM} & set(wrong) else wrong


def _with_place(check: Check, divergence: str | None, sizes: list[str]) -> Check:
    if check.passed or check.name == "numerics.failed_batches":
        return check
    if sizes:
        told = f"right at the data's size, and silently wrong at {', '.join(sizes)}: one size is frozen into the graph"
        way_out = "compute with tensors what Python computes from a shape, try the other exporter (export.kind: both), "
        way_out += "or take the size out of train.sizes: the model is then for one size only"
        return check.replace(detail=f"{check.detail}; {told}", remedy=way_out)
    place = f"first divergent tensor: {divergence}" if divergence else "no inner tensor diverges by itself"
    remedy = f"look at that node; if the difference is acceptable, set {check.name}"
    return check.replace(detail=f"{check.detail}; {place}", remedy=remedy)
