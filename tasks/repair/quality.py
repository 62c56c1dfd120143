"""How good some answers are beside the FP32 model's, and what the accuracy gate would say of them."""

from dataclasses import dataclass
from pathlib import Path

import onnx
from pydantic import Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import Golden, first_samples
from gauntlet.datasets.splits import Split
from gauntlet.metrics.accuracy_comparison import AccuracyLimits, compare_accuracy
from gauntlet.metrics.paired_accuracy import PairedAccuracy, drop_interval
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.resources import parallel_calls_and_threads
from gauntlet.runtime.session import open_session

BATCH = 16


class QualitySummary(Frozen):
    """Answers on the images of a search."""

    paired: PairedAccuracy | None = Field(description="beside the FP32 model's, image by image; None without labels")
    top1_agreement: Number
    cosine: Number = Field(description="of the worst output; 1 where no output is a number")
    sqnr_db: Number = Field(description="of the worst output; infinite where no output is a number")


@dataclass(frozen=True)
class Limits:
    """What an answer must keep: the accuracy gate's own limits, with the SQNR raised where the search asks for more."""

    accuracy: AccuracyLimits
    min_sqnr_db: float
    test_images: int
    """On so many the gate will judge: what is proven there need not be on the few of the search."""

    def accept(self, quality: QualitySummary) -> bool:
        """Tell whether the gate would pass these answers."""
        limits, paired = self.accuracy, quality.paired
        if paired is None:
            same = quality.top1_agreement >= limits.min_top1_agreement and quality.cosine >= limits.min_cosine
        else:
            same = paired.drop <= limits.max_accuracy_drop
            if limits.unresolved == "reject":
                scale = self.test_images / paired.images
                _, high = drop_interval(paired.lost * scale, paired.gained * scale, self.test_images)
                same = same and high <= limits.max_accuracy_drop
        return same and quality.sqnr_db >= self.min_sqnr_db


class ReferenceOutputs:
    """Some images and the FP32 model's answers for them.

    A pruned model has two: noise is beside its own FP32 answers, all else beside those of the `whole` model, as in the
    accuracy gate.
    """

    def __init__(self, model: Path, split: Split, images: int, whole: Path | None = None) -> None:
        self.model = model
        self.signature = Signature.read(onnx.load(model, load_external_data=False))
        self.labels = None if split.labels is None else split.labels[:images]
        at_once, threads = parallel_calls_and_threads()
        made = batched_inference(open_session(model, threads=threads), split.take(slice(0, images)))
        self.samples, self.batch, self.answers = made.samples, made.batch(1), made.run(BATCH, at_once)
        self.known = self.ask(whole) if whole else self.answers

    def __len__(self) -> int:
        return len(next(iter(self.samples.values())))

    def ask(self, model: Path) -> NamedArrays:
        """Return a model's answers for all images."""
        at_once, threads = parallel_calls_and_threads()
        return batched_inference(open_session(model, threads=threads), self.samples).run(BATCH, at_once)

    def quality(self, answers: NamedArrays) -> QualitySummary:
        """Compare answers, for all images or the first of them, with the FP32 model's."""
        count = len(next(iter(answers.values())))
        known = Golden({}, first_samples(self.known, count), None if self.labels is None else self.labels[:count])
        facts = compare_accuracy(known, self.signature, answers, first_samples(self.answers, count))
        return QualitySummary(
            paired=facts.paired,
            top1_agreement=facts.top1_agreement,
            cosine=1.0 if facts.cosine is None else facts.cosine,
            sqnr_db=float("inf") if facts.sqnr_db is None else facts.sqnr_db,
        )
