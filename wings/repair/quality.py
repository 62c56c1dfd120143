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
from gauntlet.metrics.paired_accuracy import PairedChange, drop_interval
from gauntlet.problems.accuracy_comparison import AccuracyLimits, compare_accuracy
from gauntlet.runtime.batched_inference import BatchedInference, batched_inference
from gauntlet.runtime.resources import parallel_calls_and_threads
from gauntlet.runtime.session import open_session

BATCH = 16


class QualitySummary(Frozen):
    """The quality of outputs on the images of the search."""

    change: PairedChange | None = Field(
        description="of the metric, against the FP32 model; expected, where labels do not tell"
    )
    agreement: Number = Field(1.0, description="of the worst output that is neither a prediction nor a float")
    sqnr_db: Number = Field(description="of the worst output; infinite if no output is floating point")
    headroom_db: Number = Field(description="how far the noise of the worst output is within its limit")


@dataclass(frozen=True)
class Limits:
    """The limits of the accuracy gate; the search may ask for more headroom than none.

    `test_images` is the number of images of the gate: an accuracy drop need not be resolved on the fewer of the search.
    """

    accuracy: AccuracyLimits
    test_images: int
    headroom_db: float = 0.0

    def accept(self, quality: QualitySummary) -> bool:
        """Return whether the gate would accept this quality."""
        near = quality.agreement >= self.accuracy.min_agreement and quality.headroom_db >= self.headroom_db
        return bool(near and self._drop(quality) <= self.accuracy.max_accuracy_drop)

    def _drop(self, quality: QualitySummary) -> float:
        """Return the drop that the gate would judge; 0 where nothing is predicted."""
        proven, change = self.accuracy.unresolved == "reject", quality.change
        if change is None or not proven:
            return float(change.drop) if change else 0.0
        if change.lost is None or change.gained is None:
            return float(change.high)
        scale = self.test_images / change.n
        return max(float(change.drop), drop_interval(change.lost * scale, change.gained * scale, self.test_images)[1])


class ReferenceOutputs:
    """Some images and the FP32 model's outputs for them.

    For a pruned model, noise is relative to its own FP32 outputs, everything else to those of the `whole` model, as in
    the accuracy gate.
    """

    def __init__(
        self, model: Path, split: Split, images: int, whole: Path | None = None, limits: AccuracyLimits | None = None
    ) -> None:
        self.model, self.limits = model, limits or AccuracyLimits()
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
        return QualitySummary(
            change=facts.expected_loss or facts.change,
            agreement=facts.agreement[0],
            sqnr_db=float("inf") if facts.sqnr_db is None else facts.sqnr_db,
            headroom_db=facts.headroom_db(self.limits),
        )


def _calls(model: Path, samples: NamedArrays) -> tuple[BatchedInference, int]:
    """Return the calls for the samples, and how many of them to run in parallel."""
    parallel, threads = parallel_calls_and_threads()
    return batched_inference(open_session(model, threads=threads), samples), parallel
