"""A candidate's outputs against the FP32 model's: accuracy lost, agreement and noise, and the checks on them."""

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gauntlet.core.arrays import Array
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.report import Check
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import Golden
from gauntlet.metrics.error_metrics import cosine, predicted_classes, sqnr_db, top1_agreement
from gauntlet.metrics.paired_accuracy import (
    LossVerdict,
    PairedAccuracy,
    images_to_resolve,
    loss_verdict,
    pair_accuracies,
)


class AccuracyLimits(Frozen):
    """What a smaller or faster model may cost. Without labels, the limits on agreement take the accuracy's place."""

    max_accuracy_drop: float = Field(0.01, ge=0, le=1, description="accuracy lost against the FP32 model, same images")
    unresolved: Literal["accept", "reject"] = Field(
        "accept",
        description="what becomes of a loss that is within the limit as measured, but not proven to be; one above the "
        "limit as measured is rejected either way",
    )
    min_sqnr_db: float = Field(0.0, description="least signal to quantisation noise ratio of any output, in decibels")
    min_top1_agreement: float = Field(
        0.98, ge=0, le=1, description="without labels: share of samples with the FP32 model's answer"
    )
    min_cosine: float = Field(0.99, ge=-1, le=1, description="without labels: least cosine of any output")


class Flip(Frozen):
    """One test image on which the candidate's answer is another than the FP32 model's; all three are class numbers."""

    image: int = Field(description="its place in the test split")
    truth: int
    before: int
    after: int


class OutputQuality(Frozen):
    """One output of the candidate beside the FP32 model's. Only floats have noise and a direction."""

    output: str
    sqnr_db: Number | None = Field(
        description="against the network that it was made from: the FP32 model, or a pruned one"
    )
    cosine: Number | None
    top1_agreement: Number


class AccuracyComparison(Frozen):
    """The outputs of a candidate beside those of the FP32 model, on the same test images."""

    images: int
    accuracy: Number | None = Field(description="None where there are no labels")
    reference_accuracy: Number | None
    top1_agreement: Number = Field(description="share of samples on which both give the same answer")
    outputs: tuple[OutputQuality, ...]
    paired: PairedAccuracy | None = Field(description="image by image; None where there are no labels")
    verdict: LossVerdict | None = Field(
        None, description="whether accuracy.max_accuracy_drop is proven, at 95 %, to be kept"
    )
    images_to_resolve: int | None = Field(
        None, description="test images that would probably prove it; None where it is proven, or no number would do"
    )
    flips: tuple[Flip, ...]

    @property
    def sqnr_db(self) -> float | None:
        """Signal to quantisation noise of the worst output, in decibels."""
        noise = [o.sqnr_db for o in self.outputs if o.sqnr_db is not None]
        return float(np.min(noise)) if noise else None

    @property
    def cosine(self) -> float | None:
        """Cosine of the worst output."""
        cosines = [o.cosine for o in self.outputs if o.cosine is not None]
        return float(np.min(cosines)) if cosines else None


def compare_accuracy(
    reference: Golden, signature: Signature, actual: Mapping[str, Array], own: Mapping[str, Array] | None = None
) -> AccuracyComparison:
    """Compare a candidate's answers to the test images with the FP32 model's.

    Args:
        reference: with the FP32 answers, and the labels where there are any.
        signature: of the model; it says which output is the answer.
        actual: the candidate's, by output, shape (n, ...).
        own: of the network that the candidate was made from, where that is another one.
    """
    expected = reference.test_outputs
    outputs = tuple(_compare(name, actual[name], expected[name], (own or expected)[name]) for name in expected)
    main = signature.primary_output or outputs[0].output
    predicted, before = (
        predicted_classes(actual[main], signature.labels),
        predicted_classes(expected[main], signature.labels),
    )
    accuracy = reference_accuracy = paired = None
    flips: tuple[Flip, ...] = ()
    if reference.labels is not None and predicted is not None and before is not None:
        right, was_right = predicted == reference.labels, before == reference.labels
        accuracy, reference_accuracy = float(np.mean(right)), float(np.mean(was_right))
        paired = pair_accuracies(was_right, right)
        flips = _flips(reference.labels, before, predicted)
    return AccuracyComparison(
        images=len(actual[main]),
        accuracy=accuracy,
        reference_accuracy=reference_accuracy,
        top1_agreement=next(o.top1_agreement for o in outputs if o.output == main),
        outputs=outputs,
        paired=paired,
        flips=flips,
    )


def accuracy_checks(config: AccuracyLimits, facts: AccuracyComparison) -> tuple[Check, ...]:
    """Judge the answers: by accuracy where there are labels, by agreement where there are none."""
    if facts.paired is not None:
        return tuple(_drop(config, facts.paired))
    agreement = Check(
        name="accuracy.min_top1_agreement",
        value=facts.top1_agreement,
        op=">=",
        limit=config.min_top1_agreement,
        detail=f"{facts.images} samples without labels",
        remedy="calibrate on more representative samples, or leave sensitive nodes in float",
    )
    cosines = {o.output: o.cosine for o in facts.outputs if o.cosine is not None}
    return (agreement, *worst_output_check("min_cosine", cosines, config.min_cosine, ""))


def proven(config: AccuracyLimits, paired: PairedAccuracy) -> tuple[LossVerdict, int | None]:
    """Return whether the limit is proven to be kept or not, and the images that would tell where neither is."""
    found = loss_verdict(paired, config.max_accuracy_drop)
    return found, images_to_resolve(paired, config.max_accuracy_drop) if found == "not resolved" else None


def worst_output_check(name: str, values: Mapping[str, float], limit: float, unit: str) -> list[Check]:
    """Return the check of the worst output; none where no output is a number."""
    if not values:
        return []
    output = min(values, key=lambda o: (not math.isnan(values[o]), values[o]))
    return [
        Check(
            name=f"accuracy.{name}",
            value=values[output],
            op=">=",
            limit=limit,
            unit=unit,
            detail=f"output '{output}'",
            remedy="quantise per channel, or leave the last layers in float",
        )
    ]


def _compare(name: str, actual: Array, expected: Array, own: Array) -> OutputQuality:
    numbers = expected.dtype.kind == "f"
    return OutputQuality(
        output=name,
        sqnr_db=sqnr_db(actual, own) if numbers else None,
        cosine=cosine(actual, expected) if numbers else None,
        top1_agreement=top1_agreement(actual, expected),
    )


def _drop(config: AccuracyLimits, paired: PairedAccuracy) -> list[Check]:
    """Return the check of the loss as measured, and whether one within the limit is proven to be.

    A loss above the limit as measured is rejected, proven or not; the configuration says what an unproven one within
    the limit is.
    """
    found, needed = proven(config, paired)
    resolved = found != "not resolved"
    unproven = not resolved and paired.drop <= config.max_accuracy_drop
    more = f"about {needed} test images would settle it" if needed else "no number of images is likely to settle it"
    changed = f"{paired.lost} of {paired.images} images lost, {paired.gained} gained"
    return [
        Check(
            name="accuracy.max_accuracy_drop",
            value=paired.drop,
            op="<=",
            limit=config.max_accuracy_drop,
            detail=f"{found}: {changed}; 95 % interval {paired.drop_low:.4f} to {paired.drop_high:.4f}",
            remedy="calibrate on more representative images, leave sensitive nodes in float, or prune less"
            + ("" if resolved else f"; {more}"),
        ),
        Check(
            name="accuracy.unresolved",
            value=int(unproven),
            op="==",
            limit=0,
            severity="error" if config.unresolved == "reject" else "warning",
            detail=f"whether it loses more than {config.max_accuracy_drop:g} is not resolved: {changed}"
            if unproven
            else "",
            remedy=f"{more}; accuracy.unresolved says whether to accept it meanwhile" if unproven else "",
        ),
    ]


def _flips(
    truth: npt.NDArray[np.int64], before: npt.NDArray[np.int64], after: npt.NDArray[np.int64]
) -> tuple[Flip, ...]:
    changed = np.flatnonzero(before != after).tolist()
    return tuple(Flip(image=i, truth=int(truth[i]), before=int(before[i]), after=int(after[i])) for i in changed)
