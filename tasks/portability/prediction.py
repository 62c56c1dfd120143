"""Predict the effect of saturation: compare the model with saturating sums with the same model with exact sums."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from pydantic import Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.signature import Signature
from gauntlet.datasets.splits import Split
from gauntlet.metrics.error_metrics import predicted_classes, sqnr_db, top1_agreement
from gauntlet.runtime.batched_inference import batched_inference
from tasks.portability.saturation import SaturationError
from tasks.portability.simulation import SaturationSimulator

BATCH = 16
MAX_KERNELS = 8
"""How many kernels a prediction lists."""


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
    top1_agreement: Number
    accuracy: Number | None = Field(description="with saturating sums; None without labels")
    exact_accuracy: Number | None
    kernels: tuple[KernelLoss, ...] = Field(description="highest share of saturated pairs first")


class PredictionComparison(Frozen):
    """Two sets of outputs for the same samples, compared."""

    sqnr_db: Number | None
    top1_agreement: Number
    accuracy: Number | None
    other_accuracy: Number | None


def predict(simulator: SaturationSimulator, model: Path, split: Split, count: int) -> Prediction:
    """Run the first samples of a split through the model with saturating and with exact sums."""
    samples = split.take(slice(0, count))
    labels = None if split.labels is None else split.labels[:count]
    saturating, exact, errors = _run(simulator, samples)
    comparison = compare_predictions(
        saturating, exact, labels, Signature.read(onnx.load(model, load_external_data=False))
    )
    worst = sorted(errors.items(), key=lambda item: -item[1].saturated / max(1, item[1].pairs))
    return Prediction(
        samples=len(next(iter(samples.values()))),
        saturated_share=sum(p.saturated for p in errors.values()) / max(1, sum(p.pairs for p in errors.values())),
        sqnr_db=comparison.sqnr_db,
        top1_agreement=comparison.top1_agreement,
        accuracy=comparison.accuracy,
        exact_accuracy=comparison.other_accuracy,
        kernels=tuple(
            KernelLoss(name=name, saturated=error.saturated, share=error.saturated / error.pairs)
            for name, error in worst[:MAX_KERNELS]
            if error.saturated
        ),
    )


def compare_predictions(
    outputs: NamedArrays, others: NamedArrays, labels: npt.NDArray[np.int64] | None, signature: Signature
) -> PredictionComparison:
    """Compare two sets of outputs by name with each other, and with the labels where there are any."""
    floats = [name for name, array in others.items() if array.dtype.kind == "f"]
    main = signature.primary_output or next(iter(others))
    predictions = [predicted_classes(arrays[main], signature.labels) for arrays in (outputs, others)]
    accuracies = [None if labels is None or c is None else float(np.mean(c == labels)) for c in predictions]
    return PredictionComparison(
        sqnr_db=float(np.min([sqnr_db(outputs[n], others[n]) for n in floats])) if floats else None,
        top1_agreement=top1_agreement(outputs[main], others[main]),
        accuracy=accuracies[0],
        other_accuracy=accuracies[1],
    )


def _run(
    simulator: SaturationSimulator, samples: NamedArrays
) -> tuple[NamedArrays, NamedArrays, dict[str, SaturationError]]:
    """Run all samples; return saturating and exact outputs, and the total saturation by kernel."""
    inference = batched_inference(simulator.session, samples)
    size = inference.batch(BATCH)
    calls = [simulator.run(inference.feed(start, size)) for start in range(0, len(inference), size)]
    total: dict[str, SaturationError] = {}
    for name, error in (item for outputs in calls for item in outputs.errors.items()):
        before = total.get(name, SaturationError(None, 0, 0))
        total[name] = SaturationError(None, before.saturated + error.saturated, before.pairs + error.pairs)
    join = np.stack if inference.one_sample_per_call else np.concatenate

    def joined(parts: list[NamedArrays]) -> NamedArrays:
        return {name: join([part[name] for part in parts])[: len(inference)] for name in parts[0]}

    return joined([call.saturating for call in calls]), joined([call.exact for call in calls]), total
