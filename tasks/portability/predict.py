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
from tasks.runtime.session import open_session
from tasks.signature import Signature
from tasks.statistics import classes, sqnr_db, top1_agreement

BATCH = 8
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


class Answers(Frozen):
    """How some answers compare with others on the same samples."""

    sqnr_db: Number | None
    top1_agreement: Number
    accuracy: Number | None
    other_accuracy: Number | None


def predict(network: Network, model: Path, split: Split, count: int) -> Prediction:
    """Run the first samples of a split through the network twice: with sums that saturate, and with exact ones."""
    samples = split.take(slice(0, count))
    labels = None if split.labels is None else split.labels[:count]
    there, losses = _run(network, model, samples, saturating=True)
    here, _ = _run(network, model, samples, saturating=False)
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


def compare(answers: Arrays, others: Arrays, labels: npt.NDArray[np.int64] | None, signature: Signature) -> Answers:
    """Compare two sets of answers, outputs by name, with each other and with the truth where it is known."""
    floats = [name for name, array in others.items() if array.dtype.kind == "f"]
    main = signature.answer or next(iter(others))
    named = [classes(outputs[main], signature.labels) for outputs in (answers, others)]
    right = [None if labels is None or c is None else float(np.mean(c == labels)) for c in named]
    return Answers(
        sqnr_db=float(np.min([sqnr_db(answers[n], others[n]) for n in floats])) if floats else None,
        top1_agreement=top1_agreement(answers[main], others[main]),
        accuracy=right[0],
        other_accuracy=right[1],
    )


def _run(network: Network, model: Path, samples: Arrays, *, saturating: bool) -> tuple[Arrays, dict[str, Loss]]:
    """Run all samples as the model's calls; the losses of a kernel are added up over them."""
    made = calls(open_session(model, level="off"), samples)
    size = made.batch(BATCH)
    parts: list[Arrays] = []
    total: dict[str, Loss] = {}
    for start in range(0, len(made), size):
        outputs, losses = network.run(made.feed(start, size), saturating=saturating)
        parts.append(outputs)
        for name, loss in losses.items():
            before = total.get(name, Loss(None, 0, 0))
            total[name] = Loss(None, before.saturated + loss.saturated, before.pairs + loss.pairs)
    join = np.stack if made.whole else np.concatenate
    return {name: join([part[name] for part in parts])[: len(made)] for name in parts[0]}, total
