"""Compare a candidate's accuracy and outputs with those of the FP32 model."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx
from pydantic import Field

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.artifact import Artifact
from gauntlet.core.facts import Facts, Metrics, Outcome
from gauntlet.core.frozen import Number
from gauntlet.core.kinds import kinds, required
from gauntlet.core.report import Check, Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.golden import Golden, StateSequence, predict_split, samples_in_turns
from gauntlet.datasets.splits import ArraySplit, Split
from gauntlet.datasets.state_sequence import run_sequence, stacked
from gauntlet.metrics.class_drops import unusual
from gauntlet.metrics.class_scores import ClassScore, score_metrics
from gauntlet.metrics.confidence_calibration import CalibrationScores, calibration_scores, has_scores
from gauntlet.metrics.output_comparison import NOISE_FACTOR
from gauntlet.metrics.output_noise import output_noise, worst_sample_db
from gauntlet.metrics.paired_accuracy import resolve
from gauntlet.onnx_model.operator_types import quantized_nodes
from gauntlet.problems import problem_of
from gauntlet.problems.accuracy_checks import DETECTIONS, accuracy_checks, case_noise_check, class_checks, kept_db
from gauntlet.problems.accuracy_comparison import (
    MIN_UNUSUAL,
    AccuracyComparison,
    AccuracyLimits,
    Flip,
    compare_accuracy,
    unusual_kept,
)
from gauntlet.problems.base import Problem
from gauntlet.problems.classification import Classification
from gauntlet.problems.sequence_comparison import SequenceComparison, compare_sequence, sequence_checks
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.integer_share import IntegerShare, measure_integer_share
from gauntlet.runtime.resources import parallel_calls_and_threads
from gauntlet.runtime.session import open_session

BATCH = 16
EXACT_DB = 60.0
"""More exact than this, batch sizes may differ by rounding alone."""
LOST_SAMPLE_DB = 3.0
"""A sample with more noise than this at a batch size, half of what samples vary by, is lost among many good ones."""


class AccuracyConfig(AccuracyLimits):
    """How much accuracy a smaller or faster model may lose."""


class AccuracyFacts(AccuracyComparison, Facts):
    """The comparison with the FP32 model, the share of integer arithmetic, and the calibration."""

    sequence: SequenceComparison | None = Field(None, description="fed its own states; None for a model without")
    integer_share: IntegerShare | None = Field(None, description="None for a model without quantized nodes")
    temperature: Number | None = Field(None, description="that of the network that the candidate was made from")
    calibration: CalibrationScores | None = Field(
        None, description="of the candidate's confidence at this temperature; None without labels or scores"
    )

    def quality(self) -> Metrics:
        """Return every metric, the worst class, the calibration and the share of integer arithmetic."""
        values: dict[str, float | None] = dict(score_metrics(self.scores))
        values |= {f"quality.{output}.{head.metric}": head.accuracy for output, head in self.heads.items()}
        if self.classes:
            values.setdefault("quality.macro_f1", sum(score.f1 for score in self.classes) / len(self.classes))
            values["quality.worst_recall"] = min(score.recall for score in self.classes)
        if self.calibration is not None:
            values |= self.calibration.metrics(calibrated=self.temperature is not None)
        if self.integer_share is not None:
            values["quality.integer_mac_share"] = self.integer_share.share
        return values

    def class_scores(self) -> tuple[ClassScore, ...]:
        """Return the candidate's scores."""
        return self.classes

    def changed_predictions(self) -> tuple[Flip, ...]:
        """Return the images that the candidate and the FP32 model classify differently."""
        return self.flips

    def of_candidate(self) -> Mapping[str, Any]:
        """Return the candidate's quality."""
        return {"accuracy": self.accuracy, "sqnr_db": self.sqnr_db, "differences": self.differences}

    def outcome(self) -> Outcome:
        """Return the problem's metric."""
        return Outcome(metric=self.metric)


def accuracy(
    config: AccuracyConfig,
    workspace: Workspace,
    *,
    model: Artifact,
    golden: Artifact,
    test: Artifact,
    parent_golden: Artifact | None = None,
    float_model: Artifact | None = None,
    min_recall: float = 0.0,
    min_precision: float = 0.0,
    temperature: float | None = None,
    max_ece: float | None = None,
    batch_sizes: tuple[int, ...] = (1,),
) -> Report[AccuracyFacts]:
    """Run the candidate on the test split and compare its outputs with the FP32 model's in `golden`.

    `parent_golden` holds the outputs of the network that the candidate was made from, where that is not the FP32 model
    (a pruned network). Noise is measured against these, the accuracy drop against the FP32 model. `min_recall` and
    `min_precision` limit the worst class, as in `evaluate`, and `max_ece` the calibration error of the confidence at
    the `temperature` that was fitted for the source network. At all `batch_sizes`, its outputs have to be the same. In
    float16, every tensor has to be finite where that of `float_model` is. A model with states also runs over the
    sequences in `golden`, fed its own. With labels, the artifact `drawings` is an image of test images with the truth
    and both models' predictions.
    """
    reference, path = Golden.load(workspace.path(golden)), workspace.path(model)
    proto = onnx.load(path, load_external_data=False)
    parallel_calls, threads = parallel_calls_and_threads()
    signature, session = Signature.read(proto), open_session(path, threads=threads)
    parent = Golden.load(workspace.path(parent_golden)) if parent_golden else None
    split = read_split(workspace.path(test))
    outputs = predict_split(partial(_run, session, parallel_calls), split)
    comparison = compare_accuracy(reference, signature, outputs, parent.test_outputs if parent else None)
    comparison = _resolved(comparison, config.max_accuracy_drop)
    remedy, further = remedy_of(proto), ()
    if isinstance(split, ArraySplit) and split.heads:
        judge = required("heads", "judge", "labels of further outputs")
        comparison, further = judge(config, comparison, (reference, parent), signature, outputs, split.heads, remedy)
    calibration = _calibration(signature, outputs, reference.labels, temperature)
    facts = AccuracyFacts(**dict(comparison), temperature=temperature, calibration=calibration)
    own = parent or reference
    if own.sequence is not None:
        facts = facts.replace(sequence=_sequence(signature, session, split, own.sequence))
    if quantized_nodes(proto):
        real = batched_inference(session, reference.real.inputs)
        facts = facts.replace(integer_share=measure_integer_share(path, real.feed(0, real.batch(1))))
    problem, run = problem_of(signature, reference.labels), partial(_run, session, parallel_calls)
    inputs, fed, ranges = reference.real.inputs, own.long_sequence, kinds("range").values()
    checks = (
        *accuracy_checks(config, facts, remedy),
        *further,
        *class_checks(facts, min_recall, min_precision, remedy),
        *_calibration_check(facts, max_ece),
        *case_noise_check(config, problem, own.cases, run),
        *_batch_check(config, facts, problem, session, _judged_in_batches(reference, split, batch_sizes), batch_sizes),
        *(sequence_checks(config, facts.sequence) if facts.sequence else ()),
        *(sequence_checks(config, _sequence(signature, session, split, fed), "long_sequence") if fed else ()),
        *(check for of in ranges if float_model for check in of(path, workspace.path(float_model), inputs)),
    )
    return Report(facts=facts, checks=checks, artifacts=_drawings(workspace, signature, reference, outputs, split))


def _resolved(comparison: AccuracyComparison, limit: float) -> AccuracyComparison:
    """Return the comparison with whether its drop is proven to be within the limit; as it is without a drop."""
    if comparison.change is None:
        return comparison
    verdict, needed = resolve(comparison.change, limit)
    return comparison.replace(verdict=verdict, images_to_resolve=needed)


def _judged_in_batches(reference: Golden, split: Split, sizes: tuple[int, ...]) -> NamedArrays:
    """Return samples that fill a call of every size, and as many again that show rare integers, such as an alarm."""
    rare = np.zeros(len(split), bool)
    for array in reference.test_outputs.values():
        if array.dtype.kind in "iub" and array.size:
            rare |= unusual(array).reshape(len(array), -1).any(axis=1)
    first = samples_in_turns(reference.real.inputs, max(BATCH, *sizes))
    more = split.take(np.flatnonzero(rare)[:BATCH]) if rare.any() and not rare.all() else {}
    return {name: np.concatenate([array, more[name]]) if more else array for name, array in first.items()}


def _batch_check(
    limits: AccuracyLimits,
    facts: AccuracyFacts,
    problem: Problem,
    session: Any,
    samples: NamedArrays,
    sizes: tuple[int, ...],
) -> list[Check]:
    """Return the check that outputs do not depend on the batch size, up to four times the noise that they have anyway.

    Recipes that take a scale from all rows of a call have such noise. Servers also make smaller calls, so that of one
    row less than the most is judged, too. None where the model fixes its batch size.
    """
    calls, wrong, sets = batched_inference(session, samples), list[str](), problem.signature.sets
    if calls.fixed_batch:
        return []
    usual, more_db = calls.run(BATCH), 20 * math.log10(NOISE_FACTOR)
    noises = {o.output: min(EXACT_DB, o.sqnr_db) - more_db for o in facts.outputs if o.sqnr_db is not None}
    floors = {name: max(limits.min_sqnr_db, floor) for name, floor in noises.items()}
    codes = [n for n, array in usual.items() if array.dtype.kind != "f" and n not in sets]
    for size in sorted({*sizes, max(1, max(sizes) - 1)}):
        outputs = calls.run(size)
        noise = {name: output_noise(outputs[name], usual[name]).sqnr_db for name in floors}
        wrong += [f"{name!r}, batch size {size}: {db:.3g} dB" for name, db in noise.items() if not db >= floors[name]]
        worst = {name: worst_sample_db(outputs[name], usual[name]) for name in floors}
        lost = {name: db for name, db in worst.items() if not db >= LOST_SAMPLE_DB}
        wrong += [f"{name!r}, batch size {size}: a sample has {db:.3g} dB" for name, db in lost.items()]
        pairs = {n: (outputs[n], usual[n]) for n in codes if outputs[n].shape == usual[n].shape}
        shares = {n: (np.sum(x == y) + 1) / max(x.size, 1) for n, (x, y) in pairs.items()}  # one may be a close call
        few = {name: share for name, share in shares.items() if share < limits.min_agreement}
        kept = {name: unusual_kept(*pair) for name, pair in pairs.items()}
        few |= {name: share for name, share in kept.items() if share < MIN_UNUSUAL}
        wrong += [f"{name!r}, batch size {size}: {share:.1%} agree" for name, share in few.items()]
        if sets and (db := kept_db(problem, outputs, usual)) < limits.min_sqnr_db:
            wrong.append(f"{DETECTIONS}, batch size {size}: {1 - 10 ** (-db / 10):.0%} are the same")
    fix = "use another recipe or pass: this file computes something else at these sizes"
    return [Check.of("accuracy.wrong_batch_sizes", len(wrong), "==", 0, "; ".join(wrong[:3]), fix)]


def remedy_of(model: onnx.ModelProto) -> str:
    """Return what may make a candidate more accurate and was not done, by how it computes."""
    operators = {node.op_type for node in model.graph.node}
    if "DynamicQuantizeLinear" in operators:
        return "use a static recipe, whose ranges are calibrated"
    if not operators & {"DequantizeLinear", "QLinearConv", "QLinearMatMul", "QGemm"}:
        return "use another candidate: nothing of this one can be calibrated"
    scales = {n.input[1] for n in model.graph.node if n.op_type == "DequantizeLinear"}
    scales |= {n.input[4] for n in model.graph.node if n.op_type in ("QLinearConv", "QLinearMatMul", "QGemm")}
    per_channel = any(math.prod(tensor.dims) > 1 for tensor in model.graph.initializer if tensor.name in scales)
    calibrated = "calibrate on more representative samples, or leave sensitive nodes in float (repair.enabled)"
    return calibrated if per_channel else f"quantize per channel, {calibrated}"


def _run(session: Any, parallel_calls: int, inputs: NamedArrays) -> NamedArrays:
    return batched_inference(session, inputs).run(BATCH, parallel_calls)


def _sequence(signature: Signature, session: Any, split: Split, expected: StateSequence) -> SequenceComparison:
    """Run the candidate over the sequences of the source, fed its own states, and compare the outputs."""
    steps = list(run_sequence(partial(_run, session, 1), split, expected.positions, signature))
    return compare_sequence(signature, expected, stacked(steps))


def _drawings(
    workspace: Workspace, signature: Signature, reference: Golden, outputs: NamedArrays, split: Split
) -> dict[str, Artifact]:
    """Store test images with the truth and both models' predictions; nothing without labels."""
    problem, truth = problem_of(signature, reference.labels), reference.labels
    before, after = problem.predictions_of(dict(reference.test_outputs)), problem.predictions_of(outputs)
    if truth is None or before is None or after is None:
        return {}
    predictions = {"FP32 model": before, "this candidate": after}
    drawings: dict[str, Artifact] = {}
    for draw in kinds("sheet").values():
        drawings |= draw(workspace, problem, split, truth, predictions)
    return drawings


def _calibration(
    signature: Signature, outputs: NamedArrays, labels: Array | None, temperature: float | None
) -> CalibrationScores | None:
    """Return the calibration of a classifier's scores; None without scores or labels."""
    problem = problem_of(signature, labels)
    if labels is None or not isinstance(problem, Classification):
        return None
    scores = outputs[problem.primary_output]
    return calibration_scores(scores, labels, temperature or 1.0) if has_scores(scores, labels) else None


def _calibration_check(facts: AccuracyFacts, max_ece: float | None) -> list[Check]:
    if max_ece is None or facts.change is None or facts.change.lost is None:
        return []
    value = None if facts.calibration is None else facts.calibration.ece
    detail = "" if facts.temperature is None else f"at the temperature {facts.temperature:.3g} of the source network"
    fix = "use a more exact recipe, or raise evaluate.max_ece"
    return [Check.of("accuracy.max_ece", value, "<=", max_ece, detail, fix)]
