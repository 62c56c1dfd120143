"""Compare a candidate's outputs with the FP32 model's: accuracy drop, agreement and noise.

What a problem reads from the outputs is judged by the problem's own metric: against labels where they fit, else by the
loss to be expected where the FP32 model's predictions change. Every other output is judged value by value. Every float
output has a least signal-to-noise ratio.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.ragged import comparable, paired
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import Golden
from gauntlet.metrics.class_drops import ClassDrop, largest, largest_value_drop, unusual
from gauntlet.metrics.class_scores import ClassScore, class_scores
from gauntlet.metrics.error_metrics import top1_agreement
from gauntlet.metrics.output_noise import output_noise, usual_noise
from gauntlet.metrics.paired_accuracy import LossVerdict, PairedChange, pair_accuracies
from gauntlet.problems import problem_of
from gauntlet.problems.base import Problem
from gauntlet.problems.classification import Classification

SAME_VALUES_DB = 70.0
"""Least SQNR of float32 outputs whose sums are added in another order; those of float16 have at most 66 dB."""
MIN_UNUSUAL = 0.75
"""Share of the integers, other than the most frequent one, that have to be equal, whatever the share of all is."""


class AccuracyLimits(Frozen):
    """Limits on a smaller or faster model."""

    everyday: ClassVar = {"max_accuracy_drop": 0.005}
    max_accuracy_drop: float = Field(
        0.01,
        ge=0,
        le=1,
        description="lost of the problem's metric against FP32 on the same images; without labels, the expected loss",
    )
    max_class_drop: float = Field(
        0.1,
        ge=0,
        le=1,
        description="recall or precision that a class is proven to lose, R² that a number is, and by how much the mean "
        "confidence, or the length of embeddings, is to change; without labels, which share of a class's predictions "
        "is proven to be gone or new",
    )
    max_ranking_drop: float = Field(
        0.01,
        ge=0,
        le=1,
        description="proven loss of the classes' mean ROC AUC; without labels, by the reference's probabilities",
    )
    unresolved: Literal["auto", "accept", "reject"] = Field(
        "auto",
        description="what is not proven; auto: accept a measured drop within its limit, unless nothing can be lost",
    )
    min_agreement: float = Field(
        0.98,
        ge=0,
        le=1,
        description="least share of equal values in a non-float output, and without labels of kept detections",
    )
    min_sqnr_db: float = Field(
        6.0, description="least SQNR in dB of an output that predictions are read from, and of its slices"
    )
    min_values_sqnr_db: float = Field(
        20.0, description="the same of every other output: its values themselves are the result"
    )


class Flip(Frozen):
    """A test image that the candidate and the FP32 model classify differently; all fields but `image` are classes."""

    image: int = Field(description="index in the test split")
    truth: int
    before: int
    after: int


class OutputQuality(Frozen):
    """One output of the candidate against that of the network it was made from: the FP32 or a pruned model.

    Float outputs have an SQNR, unless their rows are a set of boxes; all others have an agreement, and ragged ones too.
    """

    output: str
    read: bool = Field(False, description="whether predictions, or the next step of the model, are read from it")
    sqnr_db: Number | None = Field(None, description="of the whole output, or of its worst slices if that is less")
    place: str = Field("", description="the slice that it is of; empty for the whole output")
    agreement: Number | None = Field(None, description="share of what `counted` says")
    counted: str = Field("equal values", description="what `agreement` is a share of")


class AccuracyComparison(Frozen):
    """The outputs of a candidate against those of the FP32 model, on the same test images."""

    images: int
    metric: str = Field("accuracy", description="the primary metric of the problem")
    accuracy: Number | None = Field(None, description="the primary metric; None without labels")
    reference_accuracy: Number | None = None
    scores: dict[str, Number] = Field(default_factory=dict, description="every metric; empty without labels")
    labels_fit: bool = Field(True, description="False where the FP32 model is not proven better than chance on labels")
    expected_loss: PairedChange | None = Field(
        None, description="of the metric, which is 1 for the FP32 model, where nobody knows the truth; None with labels"
    )
    differences: str = Field("", description="how predictions differ from the FP32 model's, for people")
    kept: Number | None = Field(None, description="share of the FP32 model's detections; None with labels")
    missing_evidence: str = Field("", description="why the predictions on these samples prove nothing")
    outputs: tuple[OutputQuality, ...]
    change: PairedChange | None = Field(None, description="of the metric; None without labels")
    verdict: LossVerdict | None = Field(None, description="whether the drop is proven within the limit, at 95 %")
    images_to_resolve: int | None = Field(None, description="images to prove it; None if proven or out of reach")
    flips: tuple[Flip, ...] = ()
    classes: tuple[ClassScore, ...] = Field((), description="the candidate's scores; empty without labels")
    reference_classes: tuple[ClassScore, ...] = Field((), description="the FP32 model's scores")
    largest_class_drop: ClassDrop | None = None
    ranking: PairedChange | None = Field(None, description="mean of ROC AUC over the classes")
    heads: dict[str, "AccuracyComparison"] = Field(default_factory=dict, description="outputs with labels of their own")

    @property
    def sqnr_db(self) -> float | None:
        """SQNR of the worst output in dB; None without float outputs."""
        known = [output.sqnr_db for output in self.outputs if output.sqnr_db is not None]
        return float(np.min(known)) if known else None  # unlike min(), keeps NaN

    def headroom_db(self, limits: AccuracyLimits) -> float:
        """Return how far the noise of the worst output is within its limit; infinite without float outputs."""
        floors = ((o.sqnr_db, limits.min_sqnr_db if o.read else limits.min_values_sqnr_db) for o in self.outputs)
        return float(np.min([value - floor for value, floor in floors if value is not None] or [np.inf]))

    @property
    def same_values(self) -> bool:
        """Whether all outputs have the values of the FP32 model's but for the order of its sums: nothing is lost."""
        exact = self.sqnr_db is not None and self.sqnr_db >= SAME_VALUES_DB and self.agreement[0] == 1
        return exact and self.expected_loss is not None and self.expected_loss.drop == 0

    @property
    def agreement(self) -> tuple[float, str]:
        """The least share that agrees, and of what; 1 where nothing is counted."""
        text = "share of {0.counted} in output '{0.output}'"
        shares = [(float(o.agreement), text.format(o)) for o in self.outputs if o.agreement is not None]
        return min(shares + ([] if self.kept is None else [(float(self.kept), self.differences)]), default=(1.0, ""))


def compare_accuracy(
    reference: Golden, signature: Signature, actual: Mapping[str, Array], own: Mapping[str, Array] | None = None
) -> AccuracyComparison:
    """Compare a candidate's outputs for the test images, by name and of shape (n, ...), with the FP32 model's.

    `own` holds the outputs of the network that the candidate was made from, if that is not the FP32 model.

    Raises:
        StageError: when an output is missing, or has another shape than the FP32 model's.
    """
    expected, labels = reference.test_outputs, reference.labels
    _require_shapes(actual, expected, signature.sets)
    signature = signature.replace(primary_output=signature.primary_output or next(iter(expected)))
    problem = problem_of(signature, labels)
    before, after = (problem.predictions_of(dict(arrays)) for arrays in (expected, actual))
    facts, drops = dict[str, Any](metric=problem.metric or "accuracy"), list[ClassDrop | None]()
    if before is not None and after is not None:
        facts |= _compare_predictions(problem, dict(expected), before, after, labels)
        scores, truth = expected[problem.primary_output], labels if facts.get("labels_fit") else None
        facts["ranking"] = problem.lost_ranking(scores, actual[problem.primary_output], truth)
        certain = problem.mean_change((own or expected)[problem.primary_output], actual[problem.primary_output])
        drops += [facts["largest_class_drop"], certain]
    predicted = problem.outputs_read if before is not None and after is not None else ()
    fed = reference.sequence is None or len(reference.sequence.positions) > 1
    read = {*predicted, *(output for _, output in signature.states if fed)}  # the model itself reads a state
    outputs = tuple(
        _compare_values(name, actual[name], (own or expected)[name], read=name in read, predicted=name in predicted)
        for name in expected
        if name not in signature.sets
    )
    codes = [n for n, array in expected.items() if array.dtype.kind != "f" and n not in (*predicted, *signature.sets)]
    drops += [largest_value_drop(n, expected[n], actual[n]) for n in codes if expected[n].shape == actual[n].shape]
    facts["largest_class_drop"] = largest(drops)
    return AccuracyComparison(images=len(next(iter(actual.values()))), outputs=outputs, **facts)


def _require_shapes(actual: Mapping[str, Array], expected: Mapping[str, Array], sets: tuple[str, ...]) -> None:
    for name, array in expected.items():  # a set may have any number of rows
        if name not in actual or not (name in sets or comparable([actual[name]], [array])):
            shape = list(actual[name].shape) if name in actual else "missing"
            raise StageError(f"output {name!r} is {shape}; the FP32 model's has shape {list(array.shape)}")


def _compare_predictions(
    problem: Problem, expected: NamedArrays, before: Array, after: Array, labels: Array | None
) -> dict[str, Any]:
    facts: dict[str, Any] = {"differences": problem.differences(before, after)}
    if labels is not None:
        compare = _compare_classes if isinstance(problem, Classification) else _compare_metric
        facts |= compare(problem, before, after, labels)
        facts["labels_fit"] = problem.beats_chance(before, labels)
    if labels is None or not facts["labels_fit"]:
        facts["expected_loss"] = problem.expected_loss(expected, before, after)
        facts["kept"] = problem.kept(before, after)
        facts["missing_evidence"] = problem.missing_evidence(before)
        facts["largest_class_drop"] = problem.largest_class_drop(before, after)
    return facts


def _compare_metric(problem: Problem, before: Array, after: Array, truth: Array) -> dict[str, Any]:
    """Return what is known of a metric that is not an accuracy."""
    scores, own = problem.score(after, truth), problem.score(before, truth)
    facts: dict[str, Any] = {"accuracy": scores[problem.metric], "reference_accuracy": own[problem.metric]}
    facts |= {"scores": scores, "change": problem.loss(before, after, truth)}
    facts["largest_class_drop"] = problem.largest_class_drop(before, after, truth)
    first, last = (problem.class_counts(predictions, truth) for predictions in (before, after))
    if first is None or last is None:
        return facts
    labels = problem.signature.labels
    return facts | {"classes": last.scores(labels), "reference_classes": first.scores(labels)}


def _compare_classes(problem: Problem, before: Array, after: Array, truth: Array) -> dict[str, Any]:
    """Return what is known image by image, and class by class."""
    names = problem.signature.labels
    names = names or tuple(map(str, range(int(max(truth.max(), before.max(), after.max())) + 1)))
    flips = np.flatnonzero(before != after).tolist()
    return {
        "accuracy": float(np.mean(after == truth)),
        "reference_accuracy": float(np.mean(before == truth)),
        "scores": {"accuracy": float(np.mean(after == truth))},
        "change": pair_accuracies(before == truth, after == truth),
        "flips": tuple(Flip(image=i, truth=int(truth[i]), before=int(before[i]), after=int(after[i])) for i in flips),
        "classes": class_scores(truth, after, names),
        "reference_classes": class_scores(truth, before, names),
        "largest_class_drop": problem.largest_class_drop(before, after, truth),
    }


def unusual_kept(actual: Array, expected: Array) -> float:
    """Return the share of equal values where the expected one is not the most frequent one.

    One more may differ: it may be a close call. 1 where there are none, and for texts.
    """
    if expected.dtype.kind not in "iub":
        return 1.0
    which = unusual(expected)
    equal, count = int(np.sum((actual == expected) & which)), int(which.sum())
    return min(1.0, (equal + 1) / count) if count else 1.0


def _compare_values(name: str, actual: Array, expected: Array, *, read: bool, predicted: bool) -> OutputQuality:
    """Compare an output value by value; classes that are `predicted` are judged as predictions alone."""
    one, other, alike = paired(actual, expected)
    is_float, counted, share = expected.dtype.kind == "f", "equal values", None
    if alike is not None and not expected.size:
        counted, share = "samples for which the FP32 model returns anything", 0.0
    elif alike is not None and (is_float or not predicted):
        counted = "samples of equal length (in integers, of equal values, too)"
        share = float(alike.mean()) if is_float else top1_agreement(one, other)
    elif not is_float and not predicted:
        share = float(np.mean(actual == expected)) if expected.size else 1.0
        if (few := unusual_kept(actual, expected)) < MIN_UNUSUAL:
            counted, share = "values other than the most frequent one", few
    quality = OutputQuality(output=name, read=read, agreement=share, counted=counted)
    if not is_float:
        return quality
    noise = output_noise(one, other, read=read)
    if not read:
        noise = min(noise, usual_noise(one, other), key=lambda each: each.sqnr_db)
    return quality.replace(sqnr_db=noise.sqnr_db, place=noise.place)
