"""Gate on the outputs: the ONNX model must reproduce its framework model at every batch size."""

import numpy as np
from pydantic import Field

from gauntlet.core.artifact import Artifact
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Check, Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import RANDOM, REAL, Golden
from gauntlet.metrics.output_comparison import OutputDifference, Tolerances, WorstSample, compare_outputs
from gauntlet.runtime.session import open_session
from tasks.numerics.first_divergence import first_divergence


class NumericsConfig(Tolerances):
    """Tolerances on the difference between the ONNX model and its framework model."""


class NumericsFacts(Frozen):
    """The differences between the ONNX model and its framework model."""

    samples: dict[str, int]
    comparisons: tuple[OutputDifference, ...]
    worst_sample: int | None = Field(description="index of the real or random sample with the largest error")
    first_divergence: str | None = Field(
        description="first tensor at which a failing model differs from its framework model"
    )


def numerics(
    config: NumericsConfig, workspace: Workspace, *, model: Artifact, golden: Artifact
) -> Report[NumericsFacts]:
    """Compare the model's outputs with the golden outputs, on real and on random inputs."""
    reference = Golden.load(workspace.path(golden))
    session = open_session(workspace.path(model))
    comparison = compare_outputs(config, session, reference.cases)
    rows, errors, worst = comparison.rows, comparison.failures, comparison.worst
    checks: tuple[Check, ...] = (
        Check(
            name="numerics.failed_batches",
            value=len(errors),
            op="==",
            limit=0,
            detail=errors[0] if errors else "",
            remedy="export with dynamic axes for every size that may change: batch, height, width" if errors else "",
        ),
        _limit("max_abs_error", [r.max_abs_error for r in rows], "<=", config.max_abs_error, worst),
        _limit("max_rel_error", [r.max_rel_error for r in rows], "<=", config.max_rel_error, worst),
        _limit("min_top1_agreement", [r.top1_agreement for r in rows], ">=", config.min_top1_agreement, worst),
    )
    divergence = None
    if not all(check.passed for check in checks):
        divergence = first_divergence(workspace.path(model), reference, config.max_rel_error)
        checks = tuple(_with_divergence(check, divergence, _wrong_sizes(config, rows)) for check in checks)
    facts = NumericsFacts(
        samples={data: min(config.samples, len(next(iter(c.inputs.values())))) for data, c in reference.cases.items()},
        comparisons=rows,
        worst_sample=worst.sample if worst else None,
        first_divergence=divergence,
    )
    return Report(stage="numerics", facts=facts, checks=checks)


def _limit(name: str, values: list[float], op: str, limit: float, worst: WorstSample | None) -> Check:
    value = (float(np.max(values)) if op == "<=" else float(np.min(values))) if values else None
    return Check(
        name=f"numerics.{name}",
        value=value,
        op=op,
        limit=limit,
        detail=f"worst output '{worst.output}', {worst.data} sample {worst.sample}"
        if worst
        else "no outputs could be compared",
    )


def _wrong_sizes(config: NumericsConfig, rows: tuple[OutputDifference, ...]) -> list[str]:
    """Return the input sizes with wrong outputs; none unless the outputs are right at the size of the data."""
    wrong = list(dict.fromkeys(row.data for row in rows if not row.within(config)))
    return [] if {REAL, RANDOM} & set(wrong) else wrong


def _with_divergence(check: Check, divergence: str | None, sizes: list[str]) -> Check:
    if check.passed or check.name == "numerics.failed_batches":
        return check
    if sizes:
        detail = (
            f"right at the data's size, and silently wrong at {', '.join(sizes)}: one size is frozen into the graph"
        )
        remedy = "compute with tensors what Python computes from a shape, try the other exporter (export.kind: both), "
        remedy += "or remove the size from train.input_sizes: the model is then for one size only"
        return check.replace(detail=f"{check.detail}; {detail}", remedy=remedy)
    place = f"first divergent tensor: {divergence}" if divergence else "no intermediate tensor diverges"
    remedy = f"look at that node; if the difference is acceptable, set {check.name}"
    return check.replace(detail=f"{check.detail}; {place}", remedy=remedy)
