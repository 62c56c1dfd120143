"""Gate on the outputs: the ONNX model must reproduce its framework model at every batch size."""

import numpy as np
from pydantic import Field

from gauntlet.core.artifact import Artifact
from gauntlet.core.facts import Facts, Metrics
from gauntlet.core.report import Check, Report
from gauntlet.core.signature import class_output_of
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import RANDOM, REAL, Golden
from gauntlet.metrics.output_comparison import OutputComparison, OutputDifference, Tolerances, compare_outputs
from gauntlet.onnx_model.model_file import read_graph
from gauntlet.runtime.session import open_session
from tasks.numerics.first_divergence import first_divergence


class NumericsConfig(Tolerances):
    """Tolerances on the difference between the ONNX model and its framework model."""


class NumericsFacts(Facts):
    """The differences between the ONNX model and its framework model."""

    of_reference = True

    samples: dict[str, int]
    comparisons: tuple[OutputDifference, ...]
    worst_sample: int | None = Field(description="index of the real or random sample with the largest error")
    first_divergence: str | None = Field(
        description="first tensor at which a failing model differs from its framework model"
    )

    def quality(self) -> Metrics:
        """Return the largest error."""
        errors = [row.max_rel_error for row in self.comparisons if row.max_rel_error is not None]
        return {"quality.max_rel_error": max(errors)} if errors else {}


def numerics(config: Tolerances, workspace: Workspace, *, model: Artifact, golden: Artifact) -> Report[NumericsFacts]:
    """Compare the model's outputs with the golden outputs, on real and on random inputs."""
    path, reference = workspace.path(model), Golden.load(workspace.path(golden))
    class_output = class_output_of(read_graph(path))
    comparison = compare_outputs(config, open_session(path), reference.cases, class_output)
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
    return Report(facts=facts, checks=tuple(checks))


def _checks(config: Tolerances, comparison: OutputComparison) -> list[Check]:
    errors = comparison.failures
    remedy = "export with dynamic axes for every size that may change: batch, height, width" if errors else ""
    detail = next(iter(errors), "")
    checks = [Check(name="numerics.failed_batches", value=len(errors), op="==", limit=0, detail=detail, remedy=remedy)]
    if comparison.worst is None:
        detail = "no outputs could be compared"
        return [*checks, Check.of("numerics.max_rel_error", None, "<=", config.max_rel_error, detail)]
    worst = comparison.worst
    place = f"worst output '{worst.output}', {worst.data} sample {worst.sample}"
    return [*checks, *_error_check(config, comparison.rows, place), *_agreement_check(config, comparison.rows, place)]


def _error_check(config: Tolerances, rows: tuple[OutputDifference, ...], place: str) -> list[Check]:
    """Return the check of the float output that is furthest beyond its limit; none without float outputs."""
    errors = {row: np.nan_to_num(row.max_rel_error, nan=np.inf) for row in rows if row.max_rel_error is not None}
    if not errors:
        return []
    row = max(errors, key=lambda row: (errors[row] > row.error_limit(config), errors[row]))
    limit = row.error_limit(config)
    detail = f"{place}; '{row.output}' changes by up to {row.max_abs_error:.3g}"
    return [Check.of("numerics.max_rel_error", row.max_rel_error, "<=", limit, detail)]


def _agreement_check(config: Tolerances, rows: tuple[OutputDifference, ...], place: str) -> list[Check]:
    """Return the check of the classes, integers, booleans or strings that agree least; none without any."""
    shares = [row for row in rows if row.top1_agreement is not None]
    if not shares:
        return []
    row = min(shares, key=lambda row: (row.top1_agreement or 0) - config.agreement_limit(row.output))
    detail = f"{place}; least agreement: '{row.output}', {row.data} inputs, batch {row.batch}"
    limit = config.agreement_limit(row.output)
    return [Check.of("numerics.min_top1_agreement", row.top1_agreement, ">=", limit, detail)]


def _wrong_sizes(config: Tolerances, rows: tuple[OutputDifference, ...]) -> list[str]:
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
        remedy = f"if the difference is acceptable, set {check.name}"
        remedy = f"look at that node; {remedy}" if divergence else remedy
    return check.replace(detail=f"{check.detail}; {cause}", remedy=remedy)
