"""Gate on the outputs: the ONNX model must reproduce its framework model at every batch size."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime
from pydantic import Field

from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.facts import Facts, Metrics
from gauntlet.core.kinds import kinds
from gauntlet.core.ragged import is_ragged
from gauntlet.core.report import Check, Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.golden import RANDOM, REAL, Golden, predict_split
from gauntlet.datasets.splits import Split
from gauntlet.metrics.output_comparison import (
    NOISE_FACTOR,
    OutputComparison,
    OutputDifference,
    Tolerances,
    compare_outputs,
    differing,
)
from gauntlet.onnx_model.model_file import read_graph
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from tasks.numerics.amplified_rounding import allow_rounding, amplified_rounding

ERROR, DIFFERENT = "numerics.max_rel_error", "numerics.different_samples"
BATCH, BY_CHANCE = 64, 0.001
"""Share of the test samples whose close scores, or values at a threshold, rounding may decide."""
MAX_BY_CHANCE = 0.05
"""Where it is shown to do so."""
TIED = "bring trained weights, and samples of the model's own task; if the selection may differ, set {check}"
ROUNDING = "which is rounding", "no float32 file is closer; if the difference is acceptable, set {check}"
OTHER_SCRIPTS = (
    "right on the data's texts, and wrong where words end in letters of other scripts, such as \u00e9 and \u65e5",
    r"find words by a pattern that is the same in RE2, whose \b knows ASCII; if no text has such letters, set {check}",
)


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


def numerics(
    config: Tolerances, workspace: Workspace, *, model: Artifact, golden: Artifact, test: Artifact | None = None
) -> Report[NumericsFacts]:
    """Compare the model's outputs with the golden ones, on real and on random inputs, and on all of `test`."""
    path, reference = workspace.path(model), Golden.load(workspace.path(golden))
    signature = Signature.find(read_graph(path))
    comparison = compare_outputs(config, open_session(path), reference.cases, signature)
    checks, divergence, rounding = _checks(config, comparison), None, dict[str, float]()
    if any(check.name == ERROR and not check.passed for check in checks):
        rounding = amplified_rounding(path, reference.cases, config)
        config = allow_rounding(config, rounding)
        checks = [_with_rounding(check, config, rounding) for check in _checks(config, comparison)]
    cases, chance = reference.cases, ""
    if not all(check.passed for check in checks):
        passes = lambda rest: all(check.passed for check in _checks(config, rest))  # noqa: E731
        for without_ties in kinds("ties").values():
            cases, comparison, chance = without_ties(config, path, cases, comparison, passes)
        checks = [_with_rounding(check, config, rounding) for check in _checks(config, comparison)]
    if not all(check.passed for check in checks) and not chance:
        cause, worst = ROUNDING, comparison.worst
        if worst is None or worst.error > NOISE_FACTOR * rounding.get(worst.output, 0.0):
            located = (locate(path, reference, config.max_rel_error) for locate in kinds("divergence").values())
            divergence, as_written = next(filter(None, located), None), _is_right_as_written(config, path, reference)
            cause = _cause(_wrong_sizes(config, comparison.rows), divergence, as_written)
            texts = any(array.dtype.kind == "U" for array in reference.real.inputs.values())
            if texts and {row.data for row in comparison.rows if not row.within(config)} == {RANDOM}:
                cause = OTHER_SCRIPTS
        checks = [_with_cause(check, *cause) for check in checks]
    checks = [_with_cause(check, chance, TIED) for check in checks] if chance else checks
    if test is not None and all(check.passed for check in checks):
        checks += _different_samples_check(config, path, reference, read_split(workspace.path(test)))
    facts = NumericsFacts(
        samples={data: min(config.samples, len(next(iter(c.inputs.values())))) for data, c in cases.items()},
        comparisons=comparison.rows,
        worst_sample=comparison.worst.sample if comparison.worst else None,
        first_divergence=divergence,
    )
    return Report(facts=facts, checks=tuple(checks))


def _different_samples_check(config: Tolerances, path: Path, reference: Golden, test: Split) -> list[Check]:
    """Return the check of the output for which most test samples differ: one in a hundred is seldom among the others.

    There is none of a model with lists, as of boxes: rounding decides what is in them.
    """
    session, signature, expected = open_session(path), Signature.find(read_graph(path)), reference.test_outputs
    judged = sorted(expected.keys() - {*(signature.sets if signature else ())})
    if not judged or any(map(is_ragged, expected.values())):
        return []
    try:
        actual = predict_split(lambda inputs: batched_inference(session, inputs).run(BATCH), test)
    except StageError as error:
        return [Check.of(DIFFERENT, None, "<=", 0, str(error), "export it for every sample, or leave this one out")]
    wrong = {name: np.flatnonzero(differing(config, name, actual[name], expected[name])) for name in judged}
    chance, by_chance = _decided_by_rounding(config, path, test, [*wrong.values()]), ""
    if 0 < len(chance) <= MAX_BY_CHANCE * len(test):
        wrong = {name: np.setdiff1d(samples, chance) for name, samples in wrong.items()}
        by_chance = f"; rounding alone decides those of {len(chance)} others, which are on a threshold"
    worst = max(judged, key=lambda name: len(wrong[name]))
    first = f", such as {wrong[worst][:3].tolist()}" if len(wrong[worst]) else ""
    detail = f"{len(wrong[worst])} of {len(test)} test samples differ in '{worst}'{first}{by_chance}"
    limit = "raise numerics.max_rel_error" if expected[worst].dtype.kind == "f" else "lower numerics.min_top1_agreement"
    fix = f"look at what is special about them, and try another exporter or opset; if it is acceptable, {limit}"
    allowed = max(BY_CHANCE, 1 - config.agreement_limit(worst))
    return [Check.of(DIFFERENT, len(wrong[worst]) / len(test), "<=", allowed, detail, fix)]


def _decided_by_rounding(
    config: Tolerances, path: Path, test: Split, different: Sequence[npt.NDArray[np.int64]]
) -> npt.NDArray[np.int64]:
    """Return which of the samples that differ in some output have others, too, once the model's last digits change."""
    samples = np.unique(np.concatenate(different))
    decided = [of(config, path, test.take(samples)) for of in kinds("rounding").values()] if len(samples) else []
    return samples[np.any(decided, axis=0)] if decided else samples[:0]


def _checks(config: Tolerances, comparison: OutputComparison) -> list[Check]:
    failures, remedy = (
        comparison.failures,
        "export with dynamic axes for every size that may change: batch, height, width",
    )
    checks = [Check.of("numerics.failed_batches", len(failures), "==", 0, next(iter(failures), ""), remedy)]
    if comparison.worst is None:
        return [*checks, Check.of(ERROR, None, "<=", config.max_rel_error, "no outputs could be compared")]
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
    return [Check.of(ERROR, row.max_rel_error, "<=", limit, detail)]


def _agreement_check(config: Tolerances, rows: tuple[OutputDifference, ...], place: str) -> list[Check]:
    """Return the check of the classes, integers, booleans or strings that agree least; none without any."""
    shares = [row for row in rows if row.top1_agreement is not None]
    if not shares:
        return []
    row = min(shares, key=lambda row: (row.top1_agreement or 0) - config.agreement_limit(row.output))
    detail = f"{place}; least agreement: '{row.output}', {row.data} inputs, batch {row.batch}"
    limit = config.agreement_limit(row.output)
    return [Check.of("numerics.min_top1_agreement", row.top1_agreement, ">=", limit, detail)]


def _with_rounding(check: Check, config: Tolerances, amplified: Mapping[str, float]) -> Check:
    if check.name != ERROR or NOISE_FACTOR * max(amplified.values(), default=0.0) <= config.max_rel_error:
        return check
    name = max(amplified, key=lambda name: amplified[name])
    change = f"the last digits of the weights alone change '{name}' by {amplified[name]:.3g} of its range"
    return check.replace(detail=f"{check.detail}; {change}")


def _wrong_sizes(config: Tolerances, rows: tuple[OutputDifference, ...]) -> list[str]:
    """Return the input sizes with wrong outputs; none unless the outputs are right at the size of the data."""
    wrong = list(dict.fromkeys(row.data for row in rows if not row.within(config)))
    return [] if {REAL, RANDOM} & set(wrong) else wrong


def _is_right_as_written(config: Tolerances, path: Path, golden: Golden) -> bool:
    """Return whether the outputs are right without the runtime's graph optimizations."""
    try:
        session, signature = open_session(path, level="off"), Signature.find(read_graph(path))
        as_written = compare_outputs(config, session, golden.cases, signature)
    except StageError:  # some types have kernels with optimizations alone
        return False
    return not as_written.failures and all(row.within(config) for row in as_written.rows)


def _cause(sizes: list[str], divergence: str | None, right_as_written: bool) -> tuple[str, str]:
    """Return why outputs are wrong, and what to do about it, in which `{check}` is the check that fails."""
    if right_as_written:
        cause = f"right without the graph optimizations of ONNX Runtime {onnxruntime.__version__}, which change it"
        remedy = "try another version of ONNX Runtime, and report it there"
        return cause, f"{remedy}; where close scores are only selected otherwise, as by suppression, set {{check}}"
    if sizes:
        cause = f"right at the data's size, and silently wrong at {', '.join(sizes)}: one size is frozen into the graph"
        remedy = "compute with tensors what Python computes from a shape, try the other exporter (export.kind: both), "
        return cause, remedy + "or remove the size from train.input_sizes or train.lengths"
    limit = "if the difference is acceptable, set {check}"
    if divergence is None:
        return "no intermediate tensor diverges", limit
    return f"first divergent tensor: {divergence}", f"look at that node; {limit}"


def _with_cause(check: Check, cause: str, remedy: str) -> Check:
    if check.name == "numerics.failed_batches" or (check.passed and remedy != TIED):
        return check
    remedy = "" if check.passed else remedy.replace("{check}", check.name)
    return check.replace(detail=f"{check.detail}; {cause}", remedy=remedy)
