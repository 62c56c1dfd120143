"""What saturation would cost, predicted: the network with saturating sums beside the same network with exact ones."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from pydantic import Field

from tasks.data.dataset import Split
from tasks.frozen import Frozen, Number
from tasks.portability.saturation import Loss
from tasks.portability.simulate import Arrays, Network
from tasks.runtime.calls import calls
from tasks.signature import Signature
from tasks.statistics import classes, sqnr_db, top1_agreement

BATCH = 16
WORST = 8


class KernelLoss(Frozen):
    """One kernel in which products saturated."""

    name: str
    saturated: int = Field(description="pairs of products that left an int16")
    share: Number = Field(description="of all its pairs")


class Prediction(Frozen):
    """The whole network with saturating sums beside exact ones, on the same samples."""

    samples: int
    saturated_share: Number = Field(description="of all pairs of products in kernels that could saturate")
    sqnr_db: Number | None = Field(description="of the worst output; None where no output is a number")
    top1_agreement: Number
    accuracy: Number | None = Field(description="with saturating sums; None without labels")
    exact_accuracy: Number | None
    kernels: tuple[KernelLoss, ...] = Field(description="the worst first")


class Compared(Frozen):
    """How some answers compare with others on the same samples."""

    sqnr_db: Number | None
    top1_agreement: Number
    accuracy: Number | None
    other_accuracy: Number | None


def predict(network: Network, model: Path, split: Split, count: int) -> Prediction:
    """Run the first samples of a split through the network with both: sums that saturate, and exact ones."""
    samples = split.take(slice(0, count))
    labels = None if split.labels is None else split.labels[:count]
    there, here, losses = _run(network, samples)
    compared = compare(there, here, labels, Signature.read(onnx.load(model, load_external_data=False)))
    worst = sorted(losses.items(), key=lambda item: -item[1].saturated / max(1, item[1].pairs))
    return Prediction(
        samples=len(next(iter(samples.values()))),
        saturated_share=sum(p.saturated for p in losses.values()) / max(1, sum(p.pairs for p in losses.values())),
        sqnr_db=compared.sqnr_db,
        top1_agreement=compared.top1_agreement,
        accuracy=compared.accuracy,
        exact_accuracy=compared.other_accuracy,
        kernels=tuple(
            KernelLoss(name=name, saturated=loss.saturated, share=loss.saturated / loss.pairs)
            for name, loss in worst[:WORST]
            if loss.saturated
        ),
    )


def compare(answers: Arrays, others: Arrays, labels: npt.NDArray[np.int64] | None, signature: Signature) -> Compared:
    """Compare two sets of answers, outputs by name, with each other and with the truth where it is known."""
    floats = [name for name, array in others.items() if array.dtype.kind == "f"]
    main = signature.answer or next(iter(others))
    named = [classes(outputs[main], signature.labels) for outputs in (answers, others)]
    right = [None if labels is None or c is None else float(np.mean(c == labels)) for c in named]
    return Compared(
        sqnr_db=float(np.min([sqnr_db(answers[n], others[n]) for n in floats])) if floats else None,
        top1_agreement=top1_agreement(answers[main], others[main]),
        accuracy=right[0],
        other_accuracy=right[1],
    )


def _run(network: Network, samples: Arrays) -> tuple[Arrays, Arrays, dict[str, Loss]]:
    """Run all samples as the model's calls; return saturating and exact answers, and the losses added up by kernel."""
    made = calls(network.session, samples)
    size = made.batch(BATCH)
    found = [network.run(made.feed(start, size)) for start in range(0, len(made), size)]
    total: dict[str, Loss] = {}
    for name, loss in (item for answers in found for item in answers.losses.items()):
        before = total.get(name, Loss(None, 0, 0))
        total[name] = Loss(None, before.saturated + loss.saturated, before.pairs + loss.pairs)
    join = np.stack if made.whole else np.concatenate

    def joined(parts: list[Arrays]) -> Arrays:
        return {name: join([part[name] for part in parts])[: len(made)] for name in parts[0]}

    return joined([answers.saturating for answers in found]), joined([answers.exact for answers in found]), total
