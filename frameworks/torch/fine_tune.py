"""Fine-tune a brought PyTorch classifier, and prove on the validation images that it did not become worse."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import Field

from frameworks.torch.freezing import Trainable, freeze
from frameworks.torch.training_loop import TorchLoopConfig, TorchTrainingLoop
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.report import Check
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Predict, predict_split
from gauntlet.datasets.splits import Split, Splits, require_labels
from gauntlet.frameworks.training import require_labelled
from gauntlet.metrics.paired_accuracy import PairedChange, pair_accuracies, resolve
from gauntlet.problems import problem_of
from gauntlet.problems.classification import Classification
from tasks.train.facts import find_primary_output

if TYPE_CHECKING:
    import torch


class FineTune(TorchLoopConfig):
    """Train a brought classifier further, on the split `train`, and keep the best epoch."""

    epochs: int = Field(5, ge=1, le=1000)
    learning_rate: float = Field(1e-4, gt=0, description="of AdamW, at the start of the cosine schedule")
    trainable: Trainable = "all"
    max_accuracy_drop: float = Field(
        0.01, ge=0, le=1, description="accuracy on the validation images that must be proven not to be lost"
    )


@dataclass(frozen=True)
class Tuned:
    """What fine-tuning left besides the network's weights; `facts` are fields of `TrainFacts`.

    The first check is that of the loss, the second that of the accuracy; there are none without fine-tuning.
    A network with a new head has no second one: as it was brought, it could not predict these classes.
    """

    data: dict[str, Split]
    checks: tuple[Check, ...]
    facts: dict[str, Any]

    @property
    def usable(self) -> bool:
        """Whether the network can be used: there was no training, or its loss stayed finite."""
        return all(check.passed for check in self.checks[:1])


def fine_tune(
    config: FineTune,
    network: "torch.nn.Module",
    predict: Predict,
    splits: Splits,
    signature: Signature,
    primary_output: str | None,
    workspace: Workspace,
    *,
    new_head: bool,
) -> Tuned:
    """Train the network, which `predict` calls, and compare it with itself as it was, unless it has a new head.

    `primary_output` is the one with the class scores; it is found if it is None. Raise StageError where the data has no
    labels, or the network no score for each class.
    """
    data = require_labelled(splits, "train", "validation", "test")
    outputs = predict_split(predict, data["validation"])
    signature = _with_scores(signature, outputs, primary_output)
    scores, truth = str(signature.primary_output), require_labels(data["validation"])
    before = outputs[scores].argmax(1)
    loop = TorchTrainingLoop(config, network, data, signature, workspace, freeze(network, config.trainable))
    trained = loop.run()
    facts = loop.history.facts()
    if not trained.passed:
        return Tuned(data, (trained.replace(remedy=trained.remedy.replace("train.", "train.fine_tune.")),), facts)
    if new_head:  # it was random
        return Tuned(data, (trained,), facts)
    change = pair_accuracies(before == truth, predict_split(predict, data["validation"])[scores].argmax(1) == truth)
    return Tuned(data, (trained, _check(config, change)), facts | {"fine_tuning": change})


def _with_scores(signature: Signature, outputs: NamedArrays, primary_output: str | None) -> Signature:
    """Return the signature with the network's outputs; raise StageError unless one has a score for each class."""
    if not isinstance(problem_of(signature), Classification):
        raise StageError(
            f"train.fine_tune trains classifiers; the data's labels are for {signature.task}. Fix: remove it"
        )
    primary = find_primary_output(primary_output, outputs, signature)
    scores = outputs[primary] if primary else None
    if scores is None or scores.dtype.kind != "f" or scores.ndim != 2 or scores.shape[1] < len(signature.labels):
        shapes = {name: f"{array.dtype}{list(array.shape)}" for name, array in outputs.items()}
        raise StageError(
            f"train.fine_tune needs an output with a score for each of the data's {len(signature.labels)} classes; the "
            f"network has {shapes}. Fix: name one with train.primary_output, or build the network for the data's "
            "classes (train.arguments); a head of another number of classes in train.weights is then replaced"
        )
    specs = tuple(
        TensorSpec(name=name, dtype=array.dtype.name, shape=("batch", *array.shape[1:]))
        for name, array in outputs.items()
    )
    return signature.replace(outputs=specs, primary_output=primary)


def _check(config: FineTune, change: PairedChange) -> Check:
    verdict, needed = resolve(change, config.max_accuracy_drop)
    changed = f"{change.lost} of {change.n} validation samples lost, {change.gained} gained"
    detail = f"{verdict}: {changed}; upper end of the 95 % interval {change.low:.4f} to {change.high:.4f}"
    fix = "lower train.fine_tune.learning_rate, train fewer layers (train.fine_tune.trainable), or keep the network"
    fix += f"; about {needed} validation samples would settle it" if needed else ""
    return Check.of("train.max_accuracy_drop", change.high, "<=", config.max_accuracy_drop, detail, fix)
