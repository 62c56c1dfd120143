"""Compare a candidate's outputs with the FP32 model's: accuracy drop, agreement and noise, and their checks."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field

from gauntlet.core.arrays import Array
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.report import Check
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import Golden
from gauntlet.metrics.class_scores import ClassDrop, ClassScore, class_scores, largest_class_drop
from gauntlet.metrics.error_metrics import centered_sqnr_db, cosine, top1_agreement
from gauntlet.metrics.paired_accuracy import LossVerdict, PairedAccuracy, pair_accuracies, resolve
from gauntlet.problems import problem_of
from gauntlet.problems.base import MetricLoss, Problem
from gauntlet.problems.classification import Classification


class AccuracyLimits(Frozen):
    """Limits on a smaller or faster model. Without labels, limits on the agreement replace the one on the accuracy."""

    max_accuracy_drop: float = Field(
        0.01,
        ge=0,
        le=1,
        description="lost of the accuracy, or of the problem's own metric, against the FP32 model on the same images",
    )
    max_recall_drop: float = Field(
        0.1, ge=0, le=1, description="recall that a single class is proven to lose against the FP32 model"
    )
    unresolved: Literal["accept", "reject"] = Field(
        "accept",
        description="whether to accept a measured drop within the limit that is not proven to be within it; a measured "
        "drop above the limit is always rejected",
    )
    min_sqnr_db: float = Field(
        6.0,
        description="least SQNR of any output in dB, without its mean over the samples: a constant has 0 dB",
    )
    min_top1_agreement: float = Field(0.98, ge=0, le=1, description="without labels: share predicted as by FP32")
    min_cosine: float = Field(0.99, ge=-1, le=1, description="without labels: least cosine similarity of any output")


class Flip(Frozen):
    """A test image that the candidate and the FP32 model classify differently; all fields but `image` are classes."""

    image: int = Field(description="index in the test split")
    truth: int
    before: int
    after: int


class OutputQuality(Frozen):
    """One output of the candidate against the FP32 model's.

    Only float outputs have an SQNR and a cosine, and not those whose rows are a set of boxes.
    """

    output: str
    sqnr_db: Number | None = Field(
        description="without the mean, against the network it was made from: the FP32 or a pruned model"
    )
    cosine: Number | None
    top1_agreement: Number


class AccuracyComparison(Frozen):
    """The outputs of a candidate against those of the FP32 model, on the same test images."""

    images: int
    metric: str = Field("accuracy", description="the primary metric of the problem")
    accuracy: Number | None = Field(description="the primary metric; None without labels")
    reference_accuracy: Number | None
    scores: dict[str, Number] = Field(default_factory=dict, description="every metric; empty without labels")
    top1_agreement: Number = Field(description="share of samples for which both predict the same")
    outputs: tuple[OutputQuality, ...]
    paired: PairedAccuracy | None = Field(description="image by image; None without classes")
    loss: MetricLoss | None = Field(None, description="of another problem's metric; None for classification")
    verdict: LossVerdict | None = Field(None, description="whether the drop is proven within the limit, at 95 %")
    images_to_resolve: int | None = Field(None, description="images to prove it; None if proven or out of reach")
    flips: tuple[Flip, ...]
    classes: tuple[ClassScore, ...] = Field((), description="the candidate's scores; empty without labels")
    reference_classes: tuple[ClassScore, ...] = Field((), description="the FP32 model's scores")
    largest_class_drop: ClassDrop | None = None

    @property
    def sqnr_db(self) -> float | None:
        """SQNR of the worst output in dB; None without float outputs."""
        return _worst([o.sqnr_db for o in self.outputs])

    @property
    def cosine(self) -> float | None:
        """Cosine similarity of the worst output; None without float outputs."""
        return _worst([o.cosine for o in self.outputs])


def _worst(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.min(known)) if known else None  # unlike min(), keeps NaN


def compare_accuracy(
    reference: Golden, signature: Signature, actual: Mapping[str, Array], own: Mapping[str, Array] | None = None
) -> AccuracyComparison:
    """Compare a candidate's outputs for the test images, by name and of shape (n, ...), with the FP32 model's.

    `own` holds the outputs of the network that the candidate was made from, if that is not the FP32 model.
    """
    expected, labels = reference.test_outputs, reference.labels
    sets = signature.decode.outputs if signature.decode is not None and signature.decode.has_sets else ()
    outputs = tuple(
        _compare(name, actual[name], expected[name], (own or expected)[name], is_set=name in sets) for name in expected
    )
    main = signature.primary_output or outputs[0].output
    agreement = next(o.top1_agreement for o in outputs if o.output == main)
    problem = problem_of(signature, labels)
    before, after = (problem.predictions_of(dict(arrays)) for arrays in (expected, actual))
    found: dict[str, Any] = {}
    if before is not None and after is not None:
        if not isinstance(problem, Classification):
            agreement = problem.agreement(before, after)
        if labels is not None:
            compare = _compare_classes if isinstance(problem, Classification) else _compare_metric
            found = compare(problem, before, after, labels)
    return AccuracyComparison(
        images=len(actual[main]),
        **{"accuracy": None, "reference_accuracy": None, "paired": None, "flips": (), **found},
        metric=problem.metric or "accuracy",
        top1_agreement=agreement,
        outputs=outputs,
    )


def _compare_metric(problem: Problem, before: Array, after: Array, truth: Array) -> dict[str, Any]:
    """Return what is known of a metric that is not an accuracy."""
    loss = problem.loss(before, after, truth)
    scores = problem.score(after, truth)
    return {"accuracy": loss.after, "reference_accuracy": loss.before, "scores": scores, "loss": loss}


def _compare_classes(problem: Problem, before: Array, after: Array, truth: Array) -> dict[str, Any]:
    """Return what is known image by image, and class by class."""
    names = problem.signature.labels
    names = names or tuple(map(str, range(int(max(truth.max(), before.max(), after.max())) + 1)))
    flips = np.flatnonzero(before != after).tolist()
    return {
        "accuracy": float(np.mean(after == truth)),
        "reference_accuracy": float(np.mean(before == truth)),
        "scores": {"accuracy": float(np.mean(after == truth))},
        "paired": pair_accuracies(before == truth, after == truth),
        "flips": tuple(Flip(image=i, truth=int(truth[i]), before=int(before[i]), after=int(after[i])) for i in flips),
        "classes": class_scores(truth, after, names),
        "reference_classes": class_scores(truth, before, names),
        "largest_class_drop": largest_class_drop(truth, before == truth, after == truth, names),
    }


def _compare(name: str, actual: Array, expected: Array, own: Array, *, is_set: bool) -> OutputQuality:
    """Compare an output value by value; one whose rows are a set has neither SQNR nor cosine."""
    is_float = expected.dtype.kind == "f" and not is_set
    return OutputQuality(
        output=name,
        sqnr_db=centered_sqnr_db(actual, own) if is_float else None,
        cosine=cosine(actual, expected) if is_float else None,
        top1_agreement=top1_agreement(actual, expected),
    )


def accuracy_checks(config: AccuracyLimits, facts: AccuracyComparison) -> tuple[Check, ...]:
    """Check the accuracy drop where there are labels, else the agreement and the cosine similarity."""
    if facts.loss is not None:
        return _loss_checks(config, facts.loss)
    if facts.paired is not None:
        return *_drop_checks(config, facts.paired), *_class_drop_check(config, facts.largest_class_drop)
    detail = f"{facts.images} samples without labels"
    fix = "calibrate on more representative samples, or leave sensitive nodes in float"
    limit = config.min_top1_agreement
    agreement = Check.of("accuracy.min_top1_agreement", facts.top1_agreement, ">=", limit, detail, fix)
    cosines = {o.output: o.cosine for o in facts.outputs if o.cosine is not None}
    return (agreement, *worst_output_check("min_cosine", cosines, config.min_cosine))


def _class_drop_check(config: AccuracyLimits, drop: ClassDrop | None) -> list[Check]:
    if drop is None:
        return []
    detail = f"class '{drop.label}': {drop.lost} of {drop.images} images lost, {drop.gained} gained; at least this drop"
    fix = "calibrate on more images of this class, or leave sensitive nodes in float"
    return [Check.of("accuracy.max_recall_drop", drop.drop_low, "<=", config.max_recall_drop, detail, fix)]


def class_checks(facts: AccuracyComparison, min_recall: float, min_precision: float) -> list[Check]:
    """Check the worst class of the candidate; of a class that the FP32 model misses, no more than its own score."""
    checks = []
    for score, limit in (("recall", min_recall), ("precision", min_precision)):
        pairs = list(zip(facts.classes, facts.reference_classes, strict=True))
        if not pairs:
            return []
        worst, before = min(pairs, key=lambda pair: getattr(pair[0], score) - min(limit, getattr(pair[1], score)))
        own = min(limit, getattr(before, score))
        detail = f"class '{worst.label}', {worst.images} images; FP32: {getattr(before, score):.4f}"
        fix = "calibrate on more images of this class, or leave sensitive nodes in float"
        checks.append(Check.of(f"accuracy.min_{score}", getattr(worst, score), ">=", own, detail, fix))
    return checks


def noise_check(config: AccuracyLimits, facts: AccuracyComparison) -> list[Check]:
    """Check the signal-to-noise ratio of the worst float output, with labels or without."""
    noise = {o.output: o.sqnr_db for o in facts.outputs if o.sqnr_db is not None}
    return worst_output_check("min_sqnr_db", noise, config.min_sqnr_db, "dB")


def worst_output_check(name: str, values: Mapping[str, float], limit: float, unit: str = "") -> list[Check]:
    """Return the check of the worst output; none without float outputs."""
    if not values:
        return []
    output = min(values, key=lambda o: (not math.isnan(values[o]), values[o]))
    fix = "quantize per channel, or leave the last layers in float"
    return [Check.of(f"accuracy.{name}", values[output], ">=", limit, f"output '{output}'", fix, unit=unit)]


def _drop_checks(config: AccuracyLimits, paired: PairedAccuracy) -> tuple[Check, ...]:
    """Return the check of the measured drop, and whether a drop within the limit is proven to be within it."""
    verdict, needed = resolve(paired, config.max_accuracy_drop)
    more = f"about {needed} test images would settle it" if needed else "no number of images is likely to settle it"
    changed = f"{paired.lost} of {paired.images} images lost, {paired.gained} gained"
    return _judged_drop(config, paired, verdict, changed, more)


def _loss_checks(config: AccuracyLimits, loss: MetricLoss) -> tuple[Check, ...]:
    """Return the same checks of another metric than the accuracy."""
    changed = f"{loss.metric} {loss.before:.4f} before, {loss.after:.4f} now, {loss.samples} samples"
    verdict = loss.verdict(config.max_accuracy_drop)
    return _judged_drop(config, loss, verdict, changed, "test on more samples to settle it")


def _judged_drop(
    config: AccuracyLimits, drop: PairedAccuracy | MetricLoss, verdict: LossVerdict, changed: str, more: str
) -> tuple[Check, ...]:
    limit = config.max_accuracy_drop
    detail = f"{verdict}: {changed}; 95 % interval {drop.drop_low:.4f} to {drop.drop_high:.4f}"
    fix = "calibrate on more representative images, leave sensitive nodes in float, or prune less"
    fix += f"; {more}" if verdict == "not resolved" else ""
    measured = Check.of("accuracy.max_accuracy_drop", drop.drop, "<=", limit, detail, fix)
    unproven = verdict == "not resolved" and measured.passed
    detail = f"a drop of at most {limit:g} is not proven: {changed}" if unproven else ""
    fix = f"{more}; set accuracy.unresolved to accept or reject it meanwhile" if unproven else ""
    severity: Literal["error", "warning"] = "error" if config.unresolved == "reject" else "warning"
    return measured, Check.of("accuracy.unresolved", int(unproven), "==", 0, detail, fix, severity=severity)
