"""Training epoch by epoch: the history, and the loop that continues after the last complete epoch."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.artifact import fsync
from gauntlet.core.report import Check
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import Splits, batches, require_labels
from gauntlet.frameworks.training import EpochMetrics, LoopConfig

VALIDATION_BATCH = 64
LABEL_SMOOTHING = 0.1
"""Of a classifier's training (Szegedy et al. 2016)."""


def require_weights_to_freeze(weights: str | None, trainable: object) -> None:
    """Raise ValueError if layers would be frozen at random weights."""
    if trainable != "all" and weights is None:
        raise ValueError(f"trainable: {trainable} would freeze random weights; set train.weights, too")


class History:
    """The epochs of a training: which is the best, whether it stopped early, and the state to resume from."""

    def __init__(self, config: LoopConfig) -> None:
        self.config = config
        self.epochs: list[EpochMetrics] = []
        self.last_loss = 0.0  # of the latest training step

    @property
    def best_epoch(self) -> int:
        """The first epoch with the lowest finite validation loss, or 0."""
        finite = [e for e in self.epochs if np.isfinite(e.validation_loss)]
        return min(finite, key=lambda e: e.validation_loss).epoch if finite else 0

    @property
    def stopped_early(self) -> bool:
        """Whether patience ended the training; as in Keras, never after the first epoch."""
        done = len(self.epochs)
        return 1 < done < self.config.epochs and done - self.best_epoch >= self.config.patience

    @property
    def over(self) -> bool:
        """Whether the training has ended."""
        return len(self.epochs) >= self.config.epochs or self.stopped_early

    def add(
        self, train_loss: float, loss: float, accuracy: float, learning_rate: float, train_accuracy: float | None = None
    ) -> dict[str, float]:
        """Add an epoch, with loss and accuracy on the validation images; return its metrics."""
        metrics = {"train_loss": train_loss, "validation_loss": loss, "validation_accuracy": accuracy}
        metrics["learning_rate"] = learning_rate
        metrics |= {} if train_accuracy is None else {"train_accuracy": train_accuracy}
        self.epochs.append(EpochMetrics.model_validate({"epoch": len(self.epochs) + 1, **metrics}))
        return metrics

    def check(self, part: str = "train") -> Check:
        """Return the check that fails if the loss is not finite; `part` of the configuration is in its name."""
        loss, where = self.last_loss, f"epoch {len(self.epochs)}"
        if not np.isfinite(loss):
            where = f"epoch {len(self.epochs) + 1}, training samples"
        elif not self.best_epoch:  # batch statistics can keep the training loss finite while the outputs are NaN
            loss, where = self.epochs[-1].validation_loss, f"{where}, validation samples"
        fix = f"lower {part}.learning_rate, or look for invalid values in the training samples"
        remedy = "" if np.isfinite(loss) else fix
        return Check(name=f"{part}.loss", value=loss, op="<", limit=float("inf"), detail=where, remedy=remedy)

    def facts(self) -> dict[str, Any]:
        """Return the fields of a report about the training."""
        return {"best_epoch": self.best_epoch, "stopped_early": self.stopped_early, "history": tuple(self.epochs)}

    def dump(self) -> dict[str, Any]:
        """Return the state to resume from, as JSON values."""
        return {"epochs": [epoch.model_dump(mode="json") for epoch in self.epochs], "last_loss": self.last_loss}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `dump` returned."""
        self.epochs = [EpochMetrics.model_validate(epoch) for epoch in state["epochs"]]
        self.last_loss = state["last_loss"]


class TrainingLoop(ABC):
    """Trains epoch by epoch; resumes after the last complete one. The sample order depends only on seed and epoch."""

    checkpoint_name: str

    def __init__(self, config: LoopConfig, data: Splits, workspace: Workspace) -> None:
        self.history, self.data, self.workspace = History(config), data, workspace
        self.steps = -(-len(data["train"]) // config.batch_size)
        self.checkpoint = workspace.folder / self.checkpoint_name

    def run(self, part: str = "train") -> Check:
        """Train, from the last checkpoint if there is one; the network is usable if the returned check passes."""
        if self.checkpoint.exists():
            self._resume()
        epochs = self.history.config.epochs
        while not self.history.over:
            number = len(self.history.epochs) + 1
            train_loss = self._epoch(number)
            if not np.isfinite(train_loss):
                break
            metrics = self.history.add(train_loss, *self._validate(), self._rate(number), self._train_accuracy())
            temporary = self.checkpoint.with_suffix(".tmp")
            self._save(temporary, best=self.history.best_epoch == number)
            fsync(temporary)
            temporary.replace(self.checkpoint)
            self.workspace.progress(number, epochs, "epoch", **metrics)
        return self.history.check(part)

    def _epoch(self, number: int) -> float:
        """Train on all training images once; return the mean loss, or the first one that is not finite."""
        total, first = 0.0, (number - 1) * self.steps
        for step, loss in enumerate(self._losses(number), 1):
            self.history.last_loss = loss
            if not np.isfinite(loss):
                return loss
            total += loss
            self.workspace.progress(first + step, self.history.config.epochs * self.steps, "batch")
        return total / self.steps

    @abstractmethod
    def _validate(self) -> tuple[float, float]:
        """Return the loss and the primary metric on the validation images."""

    def _train_accuracy(self) -> float | None:
        """Return the accuracy over the training steps of this epoch, where it is counted."""
        return None

    @abstractmethod
    def _losses(self, number: int) -> Iterator[float]:
        """Yield the loss of each training step of an epoch."""

    @abstractmethod
    def _rate(self, number: int) -> float:
        """Return the learning rate at the end of an epoch."""

    @abstractmethod
    def _save(self, path: Path, *, best: bool) -> None:
        """Write the state to resume from; keep a copy of the weights if they are the best so far."""

    @abstractmethod
    def _resume(self) -> None:
        """Read the checkpoint."""


class ClassifierLoop(TrainingLoop):
    """Validates by the accuracy."""

    def _validate(self) -> tuple[float, float]:
        split = self.data["validation"]
        scores = np.concatenate([self._scores(inputs) for inputs in batches(split, VALIDATION_BATCH)])
        labels = require_labels(split)
        return self._validation_loss(scores, labels), float(np.mean(scores.argmax(1) == labels))

    @abstractmethod
    def _scores(self, inputs: NamedArrays) -> Array:
        """Return the class scores in evaluation mode, shape (n, classes)."""

    @abstractmethod
    def _validation_loss(self, scores: Array, labels: npt.NDArray[np.int64]) -> float:
        """Return the mean loss."""


def shuffled(count: int, size: int, rng: np.random.Generator) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the sample indices in random order, in batches; the last one is smaller, but never a single sample."""
    order = rng.permutation(count)
    for start in range(0, count, size):
        chosen = order[start : start + size]
        # batch normalization has no variance for one image
        yield chosen if len(chosen) > 1 else np.append(chosen, order[0])
