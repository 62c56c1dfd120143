"""Gate on a candidate: it may answer a little differently from the FP32 model, but not worse than agreed."""

import numpy as np
import onnx
from pydantic import Field

from tasks.artifact import Artifact
from tasks.data.golden import Golden, head
from tasks.frozen import Frozen, Number
from tasks.report import Check, Report
from tasks.runtime.macs import IntegerShare, integer_share
from tasks.runtime.session import open_session, run_in_batches
from tasks.signature import Signature
from tasks.statistics import sqnr_db, top1_agreement
from tasks.workspace import Workspace


class AccuracyConfig(Frozen):
    """What a smaller or faster model may cost."""

    max_accuracy_drop: float = Field(0.01, ge=0, le=1, description="accuracy lost against the FP32 model, same images")
    min_sqnr_db: float = Field(0.0, description="least signal to quantisation noise ratio of the outputs, in decibels")


class AccuracyFacts(Frozen):
    """How the candidate answers, beside the FP32 model, on the same test images."""

    images: int
    accuracy: Number
    reference_accuracy: Number
    top1_agreement: Number = Field(description="share of images on which both give the same answer")
    sqnr_db: Number
    integer_share: IntegerShare


def check_accuracy(
    config: AccuracyConfig, out: Workspace, *, model: Artifact, golden: Artifact
) -> Report[AccuracyFacts]:
    """Run the candidate on the test images and compare its answers with the FP32 model's.

    The FP32 answers are the golden ones: the numerics gate has proven that the FP32 model gives them.
    """
    reference = Golden.load(out.path(golden))
    path = out.path(model)
    output = Signature.read(onnx.load(path, load_external_data=False)).outputs[0].name
    actual = run_in_batches(open_session(path), reference.inputs, batch=16)[output]
    expected = reference.outputs[output]
    accuracy = float(np.mean(actual.argmax(1) == reference.labels))
    reference_accuracy = float(np.mean(expected.argmax(1) == reference.labels))
    quality = sqnr_db(actual, expected)
    facts = AccuracyFacts(
        images=len(reference.labels),
        accuracy=accuracy,
        reference_accuracy=reference_accuracy,
        top1_agreement=top1_agreement(actual, expected),
        sqnr_db=quality,
        integer_share=integer_share(path, head(reference.inputs, 1)),
    )
    checks = (
        Check(
            name="accuracy.max_accuracy_drop",
            value=reference_accuracy - accuracy,
            op="<=",
            limit=config.max_accuracy_drop,
            detail=f"{accuracy:.4f}, FP32 {reference_accuracy:.4f}, {len(reference.labels)} images",
            remedy="calibrate on more representative images, or leave sensitive nodes in float",
        ),
        Check(
            name="accuracy.min_sqnr_db",
            value=quality,
            op=">=",
            limit=config.min_sqnr_db,
            unit="dB",
            remedy="quantise per channel, or leave the last layers in float",
        ),
    )
    return Report(stage="accuracy", facts=facts, checks=checks)
