"""Gate on a candidate: it may answer a little differently from the FP32 model, but not worse than agreed."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from pydantic import Field

from tasks.artifact import Artifact
from tasks.data.dataset import Arrays, Split, batches
from tasks.data.golden import Golden
from tasks.data.read import read_split
from tasks.frozen import Frozen, Number
from tasks.paired import Paired, Verdict, compare, images_to_resolve, verdict
from tasks.report import Check, Report
from tasks.runtime.calls import calls
from tasks.runtime.macs import IntegerShare, integer_share, quantized_nodes
from tasks.runtime.session import open_session
from tasks.runtime.threads import lanes
from tasks.signature import Signature
from tasks.statistics import Array, classes, cosine, sqnr_db, top1_agreement
from tasks.workspace import Workspace

BATCH = 16


class AccuracyConfig(Frozen):
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


class OutputAgreement(Frozen):
    """One output of the candidate beside the FP32 model's. Only floats have noise and a direction."""

    output: str
    sqnr_db: Number | None = Field(
        description="against the network that it was made from: the FP32 model, or a pruned one"
    )
    cosine: Number | None
    top1_agreement: Number


class AccuracyFacts(Frozen):
    """How the candidate answers, beside the FP32 model, on the same test images."""

    images: int
    accuracy: Number | None = Field(description="None where there are no labels")
    reference_accuracy: Number | None
    top1_agreement: Number = Field(description="share of samples on which both give the same answer")
    outputs: tuple[OutputAgreement, ...]
    paired: Paired | None = Field(description="image by image; None where there are no labels")
    verdict: Verdict | None = Field(
        None, description="whether accuracy.max_accuracy_drop is proven, at 95 %, to be kept"
    )
    images_to_resolve: int | None = Field(
        None, description="test images that would probably prove it; None where it is proven, or no number would do"
    )
    flips: tuple[Flip, ...]
    integer_share: IntegerShare | None = Field(None, description="None where nothing is quantised")

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


def check_accuracy(
    config: AccuracyConfig,
    out: Workspace,
    *,
    model: Artifact,
    golden: Artifact,
    test: Artifact,
    source: Artifact | None = None,
) -> Report[AccuracyFacts]:
    """Run the candidate on the test split and compare its answers with the FP32 model's.

    Args:
        config: what it may cost.
        out: where to read.
        model: the candidate.
        golden: the FP32 answers: the numerics gate has proven that the FP32 model gives them.
        test: the split.
        source: the answers of the network that the candidate was made from, where that is another one (it was pruned).
            Noise is what the candidate adds to these; the accuracy lost is against the FP32 model all the same.
    """
    reference, split, path = Golden.load(out.path(golden)), read_split(out.path(test)), out.path(model)
    proto = onnx.load(path, load_external_data=False)
    at_once, threads = lanes()
    signature, session = Signature.read(proto), open_session(path, threads=threads)
    own = Golden.load(out.path(source)).answers if source else None
    facts = compared(reference, signature, _answers(session, split, at_once), own)
    if facts.paired is not None:
        found, needed = _proven(config, facts.paired)
        facts = facts.replace(verdict=found, images_to_resolve=needed)
    if quantized_nodes(proto):
        first = calls(session, reference.real.inputs)
        facts = facts.replace(integer_share=integer_share(path, first.feed(0, first.batch(1))))
    noise = {o.output: o.sqnr_db for o in facts.outputs if o.sqnr_db is not None}
    worst = _worst("min_sqnr_db", noise, config.min_sqnr_db, "dB")
    return Report(stage="accuracy", facts=facts, checks=(*still_right(config, facts), *worst))


def compared(
    reference: Golden, signature: Signature, actual: Mapping[str, Array], own: Mapping[str, Array] | None = None
) -> AccuracyFacts:
    """Compare a candidate's answers to the test images with the FP32 model's.

    Args:
        reference: with the FP32 answers, and the labels where there are any.
        signature: of the model; it says which output is the answer.
        actual: the candidate's, by output, shape (n, ...).
        own: of the network that the candidate was made from, where that is another one.
    """
    expected = reference.answers
    outputs = tuple(_compare(name, actual[name], expected[name], (own or expected)[name]) for name in expected)
    main = signature.answer or outputs[0].output
    predicted, before = classes(actual[main], signature.labels), classes(expected[main], signature.labels)
    accuracy = reference_accuracy = paired = None
    flips: tuple[Flip, ...] = ()
    if reference.labels is not None and predicted is not None and before is not None:
        right, was_right = predicted == reference.labels, before == reference.labels
        accuracy, reference_accuracy = float(np.mean(right)), float(np.mean(was_right))
        paired = compare(was_right, right)
        flips = _flips(reference.labels, before, predicted)
    return AccuracyFacts(
        images=len(actual[main]),
        accuracy=accuracy,
        reference_accuracy=reference_accuracy,
        top1_agreement=next(o.top1_agreement for o in outputs if o.output == main),
        outputs=outputs,
        paired=paired,
        flips=flips,
    )


def _answers(session: Any, split: Split, at_once: int) -> Arrays:
    parts = [calls(session, samples).run(BATCH, at_once) for samples in batches(split, 4 * BATCH)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _compare(name: str, actual: Array, expected: Array, own: Array) -> OutputAgreement:
    numbers = expected.dtype.kind == "f"
    return OutputAgreement(
        output=name,
        sqnr_db=sqnr_db(actual, own) if numbers else None,
        cosine=cosine(actual, expected) if numbers else None,
        top1_agreement=top1_agreement(actual, expected),
    )


def still_right(config: AccuracyConfig, facts: AccuracyFacts) -> tuple[Check, ...]:
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
    return (agreement, *_worst("min_cosine", cosines, config.min_cosine, ""))


def _proven(config: AccuracyConfig, paired: Paired) -> tuple[Verdict, int | None]:
    """Return whether the limit is proven to be kept or not, and the images that would tell where neither is."""
    found = verdict(paired, config.max_accuracy_drop)
    return found, images_to_resolve(paired, config.max_accuracy_drop) if found == "not resolved" else None


def _drop(config: AccuracyConfig, paired: Paired) -> list[Check]:
    """Return the check of the loss as measured, and whether one within the limit is proven to be.

    A loss above the limit as measured is rejected, proven or not; the configuration says what an unproven one within
    the limit is.
    """
    found, needed = _proven(config, paired)
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


def _worst(name: str, values: dict[str, float], limit: float, unit: str) -> list[Check]:
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
