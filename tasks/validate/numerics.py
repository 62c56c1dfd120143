"""Gate on the numbers: the model must compute what its source computed, at every batch size."""

import numpy as np
from pydantic import Field, PositiveInt

from tasks.artifact import Artifact
from tasks.data.golden import Arrays, Golden, head
from tasks.errors import StageError
from tasks.frozen import Frozen, Number
from tasks.report import Check, Report
from tasks.runtime.session import open_session, run_in_batches
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

    data: str = Field(description="real or random")
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
        "real": (head(reference.inputs, config.samples), head(reference.outputs, config.samples)),
        "random": (reference.random_inputs, reference.random_outputs),
    }
    rows: list[Comparison] = []
    errors: list[str] = []
    worst: tuple[float, str, str, int] = (-1.0, "", "", 0)
    for data, (inputs, expected) in cases.items():
        for batch in config.batch_sizes:
            try:
                actual = run_in_batches(session, inputs, batch)
            except StageError as error:
                errors.append(f"batch {batch}: {error}")
                continue
            wrong = [name for name in expected if name not in actual or actual[name].shape != expected[name].shape]
            if wrong:
                shape = actual[wrong[0]].shape if wrong[0] in actual else "missing"
                errors.append(f"batch {batch}: '{wrong[0]}' is {shape}, not {expected[wrong[0]].shape}")
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
            remedy="export with a dynamic batch" if errors else "",
        ),
        _limit("max_abs_error", [r.max_abs_error for r in rows], "<=", config.max_abs_error, worst),
        _limit("max_rel_error", [r.max_rel_error for r in rows], "<=", config.max_rel_error, worst),
        _limit("min_top1_agreement", [r.top1_agreement for r in rows], ">=", config.min_top1_agreement, worst),
    )
    divergence = None
    if not all(check.passed for check in checks):
        divergence = first_divergence(out.path(model), reference, config.max_rel_error)
        checks = tuple(_with_place(check, divergence) for check in checks)
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


def _with_place(check: Check, divergence: str | None) -> Check:
    if check.passed or check.name == "numerics.failed_batches":
        return check
    place = f"first divergent tensor: {divergence}" if divergence else "no inner tensor diverges by itself"
    remedy = f"look at that node; if the difference is acceptable, set {check.name}"
    return check.replace(detail=f"{check.detail}; {place}", remedy=remedy)
