"""Compare a candidate's accuracy and outputs with those of the FP32 model."""

import numpy as np
import onnx
from pydantic import Field

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.artifact import Artifact
from gauntlet.core.frozen import Number
from gauntlet.core.report import Check, Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.splits import Split, batches
from gauntlet.metrics.confidence_calibration import CalibrationScores, calibration_scores, has_scores
from gauntlet.metrics.paired_accuracy import resolve
from gauntlet.onnx_model.operator_types import quantized_nodes
from gauntlet.problems import problem_of
from gauntlet.problems.accuracy_comparison import (
    AccuracyComparison,
    AccuracyLimits,
    accuracy_checks,
    class_checks,
    compare_accuracy,
    noise_check,
)
from gauntlet.problems.classification import Classification
from gauntlet.problems.prediction_sheet import store_drawing
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.integer_share import IntegerShare, measure_integer_share
from gauntlet.runtime.resources import parallel_calls_and_threads
from gauntlet.runtime.session import open_session

BATCH = 16


class AccuracyConfig(AccuracyLimits):
    """How much accuracy a smaller or faster model may lose."""


class AccuracyFacts(AccuracyComparison):
    """The comparison with the FP32 model, the share of integer arithmetic, and the calibration."""

    integer_share: IntegerShare | None = Field(None, description="None for a model without quantized nodes")
    temperature: Number | None = Field(None, description="that of the network that the candidate was made from")
    calibration: CalibrationScores | None = Field(
        None, description="of the candidate's confidence at this temperature; None without labels or scores"
    )


def accuracy(
    config: AccuracyConfig,
    workspace: Workspace,
    *,
    model: Artifact,
    golden: Artifact,
    test: Artifact,
    parent_golden: Artifact | None = None,
    min_recall: float = 0.0,
    min_precision: float = 0.0,
    temperature: float | None = None,
    max_ece: float | None = None,
) -> Report[AccuracyFacts]:
    """Run the candidate on the test split and compare its outputs with the FP32 model's in `golden`.

    `parent_golden` holds the outputs of the network that the candidate was made from, where that is not the FP32 model
    (a pruned network). Noise is measured against these, the accuracy drop against the FP32 model. `min_recall` and
    `min_precision` limit the worst class, as in `evaluate`, and `max_ece` the calibration error of the confidence at
    the `temperature` that was fitted for the source network. With labels, the artifact `drawings` is an image of test
    images with the truth and both models' predictions.
    """
    reference, path = Golden.load(workspace.path(golden)), workspace.path(model)
    proto = onnx.load(path, load_external_data=False)
    parallel_calls, threads = parallel_calls_and_threads()
    signature, session = Signature.read(proto), open_session(path, threads=threads)
    parent_outputs = Golden.load(workspace.path(parent_golden)).test_outputs if parent_golden else None
    split = read_split(workspace.path(test))
    parts = [batched_inference(session, part).run(BATCH, parallel_calls) for part in batches(split, 4 * BATCH)]
    outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    comparison = compare_accuracy(reference, signature, outputs, parent_outputs)
    if comparison.paired is not None:
        verdict, needed = resolve(comparison.paired, config.max_accuracy_drop)
        comparison = comparison.replace(verdict=verdict, images_to_resolve=needed)
    elif comparison.loss is not None:
        comparison = comparison.replace(verdict=comparison.loss.verdict(config.max_accuracy_drop))
    calibration = _calibration(signature, outputs, reference.labels, temperature)
    facts = AccuracyFacts(**dict(comparison), temperature=temperature, calibration=calibration)
    if quantized_nodes(proto):
        real = batched_inference(session, reference.real.inputs)
        facts = facts.replace(integer_share=measure_integer_share(path, real.feed(0, real.batch(1))))
    by_class = class_checks(facts, min_recall, min_precision)
    by_class += _calibration_check(facts, max_ece)
    checks = (*accuracy_checks(config, facts), *by_class, *noise_check(config, facts))
    drawn = _drawings(workspace, signature, reference, outputs, split)
    return Report(stage="accuracy", facts=facts, checks=checks, artifacts=drawn)


def _drawings(
    workspace: Workspace, signature: Signature, reference: Golden, outputs: NamedArrays, split: Split
) -> dict[str, Artifact]:
    """Store test images with the truth and both models' predictions; nothing without labels."""
    problem, truth = problem_of(signature, reference.labels), reference.labels
    before, after = problem.predictions_of(dict(reference.test_outputs)), problem.predictions_of(outputs)
    if truth is None or before is None or after is None:
        return {}
    return store_drawing(workspace, problem, split, truth, {"FP32 model": before, "this candidate": after})


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
    if max_ece is None or facts.paired is None:
        return []
    value = None if facts.calibration is None else facts.calibration.ece
    detail = "" if facts.temperature is None else f"at the temperature {facts.temperature:.3g} of the source network"
    fix = "calibrate on more representative images, leave the last layers in float, or raise evaluate.max_ece"
    return [Check.of("accuracy.max_ece", value, "<=", max_ece, detail, fix)]
