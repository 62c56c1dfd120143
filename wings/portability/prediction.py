"""Predict the effect of saturation: compare the model with saturating sums with the same model with exact sums."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.ragged import comparable
from gauntlet.core.signature import Signature
from gauntlet.datasets.splits import Split
from gauntlet.datasets.truth import class_indices
from gauntlet.metrics.error_metrics import sqnr_db
from gauntlet.onnx_model.model_file import read_graph
from gauntlet.problems import problem_of
from gauntlet.problems.classification import Classification
from gauntlet.runtime.batched_inference import BatchedInference, batched_inference
from wings.portability.simulation import SaturationSimulator

BATCH = 16
MAX_KERNELS = 8  # that a prediction lists


class KernelLoss(Frozen):
    """One kernel in which products saturated."""

    name: str
    saturated: int = Field(description="pairs of products whose sum exceeds an int16")
    share: Number = Field(description="share of all its pairs")


class Prediction(Frozen):
    """The whole model with saturating sums against exact sums, on the same samples."""

    samples: int
    saturated_share: Number = Field(description="share of all pairs of products in kernels that could saturate")
    sqnr_db: Number | None = Field(description="of the worst output; None where no output is floating point")
    agreement: Number
    accuracy: Number | None = Field(description="with saturating sums; None without labels")
    exact_accuracy: Number | None
    kernels: tuple[KernelLoss, ...] = Field(description="highest share of saturated pairs first")


def predict(simulator: SaturationSimulator, model: Path, split: Split, count: int) -> Prediction:
    """Run the first samples of a split through the model with saturating and with exact sums."""
    inference = batched_inference(simulator.session, split.take(slice(0, count)))
    size = inference.batch(BATCH)
    calls = [simulator.run(inference.feed(start, size)) for start in range(0, len(inference), size)]
    saturating = joined(inference, [call.saturating for call in calls])
    exact = joined(inference, [call.exact for call in calls])
    sqnr_db, agreement, accuracy, exact_accuracy = compare_predictions(saturating, exact, model, split)
    saturated, pairs = Counter[str](), Counter[str]()
    for name, error in (item for call in calls for item in call.errors.items()):
        saturated[name] += error.saturated
        pairs[name] += error.pairs
    losses = [KernelLoss(name=n, saturated=count, share=count / pairs[n]) for n, count in saturated.items() if count]
    return Prediction(
        samples=len(inference),
        saturated_share=saturated.total() / max(1, pairs.total()),
        sqnr_db=sqnr_db,
        agreement=agreement,
        accuracy=accuracy,
        exact_accuracy=exact_accuracy,
        kernels=tuple(sorted(losses, key=lambda loss: -loss.share)[:MAX_KERNELS]),
    )


def compare_predictions(
    outputs: NamedArrays, others: NamedArrays, model: Path, split: Split
) -> tuple[float | None, float, float | None, float | None]:
    """Return the worst SQNR in dB, the agreement, and both accuracies; None without float outputs or labels.

    Both outputs of the model are for the same samples, the first of the split. Predictions agree as their problem has
    it; outputs that are no predictions have nothing but noise.
    """
    signature = Signature.read(read_graph(model))
    floats = [name for name, array in others.items() if array.dtype.kind == "f"]
    signature = signature.replace(primary_output=signature.primary_output or next(iter(others)))
    problem, labels = problem_of(signature, split.labels), class_indices(split.labels)
    after, before = problem.predictions_of(outputs), problem.predictions_of(others)
    agreement = 1.0 if before is None or after is None else float(problem.disagreement(before, after).after)
    accuracies: list[float | None] = [None, None]
    if labels is not None and isinstance(problem, Classification) and before is not None and after is not None:
        accuracies = [float(np.mean(classes == labels[: len(classes)])) for classes in (after, before)]
    pairs = comparable([outputs[name] for name in floats], [others[name] for name in floats])
    worst = None if not floats else float(np.min([sqnr_db(*pair) for pair in pairs] or [math.nan]))
    return worst, agreement, accuracies[0], accuracies[1]


def joined(inference: BatchedInference, calls: Sequence[NamedArrays]) -> NamedArrays:
    """Return the outputs for all samples, shape (n, ...), from those of each call."""
    return {name: inference.joined(name, [call[name] for call in calls])[: len(inference)] for name in calls[0]}
