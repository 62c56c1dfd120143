"""Gate on the outputs: the ONNX model must reproduce its framework model at every batch size."""

import numpy as np
from pydantic import Field

from gauntlet.core.artifact import Artifact
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Check, Report
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import RANDOM, REAL, Golden
from gauntlet.metrics.output_comparison import OutputComparison, OutputDifference, Tolerances, compare_outputs
from gauntlet.runtime.session import open_session
from tasks.numerics.first_divergence import first_divergence

LIMITS = (("max_abs_error", "<=", np.max), ("max_rel_error", "<=", np.max), ("min_top1_agreement", ">=", np.min))


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
    path, reference = workspace.path(model), Golden.load(workspace.path(golden))
    comparison = compare_outputs(config, open_session(path), reference.cases)
    checks = _checks(config, comparison)
    divergence = None
    if not all(check.passed for check in checks):
        divergence = first_divergence(path, reference, config.max_rel_error)
        wrong_sizes = _wrong_sizes(config, comparison.rows)
        checks = [_with_divergence(check, divergence, wrong_sizes) for check in checks]
    facts = NumericsFacts(
        samples={data: min(config.samples, len(next(iter(c.inputs.values())))) for data, c in reference.cases.items()},
        comparisons=comparison.rows,
        worst_sample=comparison.worst.sample if comparison.worst else None,
        first_divergence=divergence,
    )
    return Report(stage="numerics", facts=facts, checks=tuple(checks))


def _checks(config: NumericsConfig, comparison: OutputComparison) -> list[Check]:
    errors, worst = comparison.failures, comparison.worst
    remedy = "export with dynamic axes for every size that may change: batch, height, width" if errors else ""
    detail = next(iter(errors), "")
    checks = [Check(name="numerics.failed_batches", value=len(errors), op="==", limit=0, detail=detail, remedy=remedy)]
    detail = "no outputs could be compared"
    if worst:
        detail = f"worst output '{worst.output}', {worst.data} sample {worst.sample}"
    for name, op, extreme in LIMITS:
        values = [getattr(row, name.removeprefix("min_")) for row in comparison.rows]
        value = float(extreme(values)) if values else None
        checks.append(Check(name=f"numerics.{name}", value=value, op=op, limit=getattr(config, name), detail=detail))
    return checks


def _wrong_sizes(config: NumericsConfig, rows: tuple[OutputDifference, ...]) -> list[str]:
    """Return the input sizes with wrong outputs; none unless the outputs are right at the size of the data."""
    wrong = list(dict.fromkeys(row.data for row in rows if not row.within(config)))
    return [] if {REAL, RANDOM} & set(wrong) else wrong


def _with_divergence(check: Check, divergence: str | None, sizes: list[str]) -> Check:
    if check.passed or check.name == "numerics.failed_batches":
        return check
    if sizes:
        cause = f"right at the data's size, and silently wrong at {', '.join(sizes)}: one size is frozen into the graph"
        remedy = "compute with tensors what Python computes from a shape, try the other exporter (export.kind: both), "
        remedy += "or remove the size from train.input_sizes: the model is then for one size only"
    else:
        cause = f"first divergent tensor: {divergence}" if divergence else "no intermediate tensor diverges"
        remedy = f"look at that node; if the difference is acceptable, set {check.name}"
    return check.replace(detail=f"{check.detail}; {cause}", remedy=remedy)
