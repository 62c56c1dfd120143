"""Gate on the numbers: the model must compute what its source computed, at every batch size."""

import numpy as np
from pydantic import Field

from tasks.agreement import Comparison, NumericsConfig, Worst, agreement
from tasks.artifact import Artifact
from tasks.data.golden import RANDOM, REAL, Golden
from tasks.frozen import Frozen
from tasks.report import Check, Report
from tasks.runtime.session import open_session
from tasks.validate.divergence import first_divergence
from tasks.workspace import Workspace


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
    found = agreement(config, session, reference.cases)
    rows, errors, worst = found.rows, found.complaints, found.worst
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
        samples={data: min(config.samples, len(next(iter(c.inputs.values())))) for data, c in reference.cases.items()},
        comparisons=rows,
        worst_sample=worst.sample if worst else None,
        first_divergence=divergence,
    )
    return Report(stage="numerics", facts=facts, checks=checks)


def _limit(name: str, values: list[float], op: str, limit: float, worst: Worst | None) -> Check:
    value = (float(np.max(values)) if op == "<=" else float(np.min(values))) if values else None
    return Check(
        name=f"numerics.{name}",
        value=value,
        op=op,
        limit=limit,
        detail=f"worst output '{worst.output}', {worst.data} sample {worst.sample}"
        if worst
        else "nothing could be compared",
    )


def _wrong_sizes(config: NumericsConfig, rows: tuple[Comparison, ...]) -> list[str]:
    """Return the sizes that the model takes and answers wrongly, when it is right at the size of the data."""
    wrong = list(dict.fromkeys(row.data for row in rows if not row.within(config)))
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
