"""The quality of a model's outputs compared with the FP32 model's, and whether the accuracy gate would accept it."""

from dataclasses import dataclass
from pathlib import Path

import onnx
from pydantic import Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import Golden, first_samples
from gauntlet.datasets.splits import Split
from gauntlet.metrics.paired_accuracy import PairedAccuracy, drop_interval
from gauntlet.problems.accuracy_comparison import AccuracyLimits, compare_accuracy
from gauntlet.problems.base import MetricLoss
from gauntlet.runtime.batched_inference import BatchedInference, batched_inference
from gauntlet.runtime.resources import parallel_calls_and_threads
from gauntlet.runtime.session import open_session

BATCH = 16


class QualitySummary(Frozen):
    """The quality of outputs on the images of the search."""

    paired: PairedAccuracy | None = Field(description="against the FP32 model, image by image; None without classes")
    loss: MetricLoss | None = Field(None, description="of another problem's metric, against the FP32 model")
    top1_agreement: Number
    cosine: Number = Field(description="of the worst output; 1 if no output is floating point")
    sqnr_db: Number = Field(description="of the worst output; infinite if no output is floating point")


@dataclass(frozen=True)
class Limits:
    """The limits of the accuracy gate; the search may raise `min_sqnr_db`.

    `test_images` is the number of images of the gate: an accuracy drop need not be resolved on the fewer of the search.
    """

    accuracy: AccuracyLimits
    min_sqnr_db: float
    test_images: int

    def accept(self, quality: QualitySummary) -> bool:
        """Return whether the gate would accept this quality."""
        limits, paired = self.accuracy, quality.paired
        if quality.loss is not None:
            drop = quality.loss.drop_high if limits.unresolved == "reject" else quality.loss.drop
            accurate = drop <= limits.max_accuracy_drop
        elif paired is None:
            accurate = quality.top1_agreement >= limits.min_top1_agreement and quality.cosine >= limits.min_cosine
        else:
            accurate = paired.drop <= limits.max_accuracy_drop
            if limits.unresolved == "reject":
                scale = self.test_images / paired.images
                _, high = drop_interval(paired.lost * scale, paired.gained * scale, self.test_images)
                accurate = accurate and high <= limits.max_accuracy_drop
        return accurate and quality.sqnr_db >= self.min_sqnr_db


class ReferenceOutputs:
    """Some images and the FP32 model's outputs for them.

    For a pruned model, noise is relative to its own FP32 outputs, everything else to those of the `whole` model, as in
    the accuracy gate.
    """

    def __init__(self, model: Path, split: Split, images: int, whole: Path | None = None) -> None:
        self.model = model
        self.signature = Signature.read(onnx.load(model, load_external_data=False))
        self.labels = None if split.labels is None else split.labels[:images]
        calls, parallel = _calls(model, split.take(slice(0, images)))
        self.samples, self.batch, self.outputs = calls.samples, calls.batch(1), calls.run(BATCH, parallel)
        self.expected = self.run(whole) if whole else self.outputs

    def __len__(self) -> int:
        return len(next(iter(self.samples.values())))

    def run(self, model: Path) -> NamedArrays:
        """Return a model's outputs for all images."""
        calls, parallel = _calls(model, self.samples)
        return calls.run(BATCH, parallel)

    def quality(self, outputs: NamedArrays) -> QualitySummary:
        """Compare outputs, for all images or the first of them, with the FP32 model's."""
        count = len(next(iter(outputs.values())))
        expected = Golden({}, first_samples(self.expected, count), None if self.labels is None else self.labels[:count])
        facts = compare_accuracy(expected, self.signature, outputs, first_samples(self.outputs, count))
        cosine = 1.0 if facts.cosine is None else facts.cosine
        sqnr_db = float("inf") if facts.sqnr_db is None else facts.sqnr_db
        return QualitySummary(
            paired=facts.paired, loss=facts.loss, top1_agreement=facts.top1_agreement, cosine=cosine, sqnr_db=sqnr_db
        )


def _calls(model: Path, samples: NamedArrays) -> tuple[BatchedInference, int]:
    """Return the calls for the samples, and how many of them to run in parallel."""
    parallel, threads = parallel_calls_and_threads()
    return batched_inference(open_session(model, threads=threads), samples), parallel
