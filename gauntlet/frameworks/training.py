"""What learning needs of the data and leaves behind, whichever framework and whichever stage did it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.report import Check
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, Predict, predict_split
from gauntlet.datasets.splits import Split
from gauntlet.metrics.error_metrics import predicted_classes


class EpochMetrics(Frozen):
    """One pass over the training images."""

    epoch: int = Field(ge=1)
    train_loss: Number
    validation_loss: Number
    validation_accuracy: Number
    learning_rate: Number = Field(description="at the end of the epoch")


class LearningConfig(Frozen):
    """How long and how fast a network learns, in any framework."""

    epochs: int = Field(2, ge=1, le=1000)
    patience: int = Field(3, ge=1, description="stop after this many epochs without a lower validation loss")
    batch_size: int = Field(32, ge=2, description="images a step")
    learning_rate: float = Field(1e-3, gt=0, description="of AdamW, at the start of the cosine")
    weight_decay: float = Field(0.01, ge=0)
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    seed: int = Field(0, ge=0)

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read: none."""
        return ()


class History:
    """The epochs of a training: which one is the best, when patience ends it, and what a restart needs to know."""

    def __init__(self, config: LearningConfig) -> None:
        self.config = config
        self.epochs: list[EpochMetrics] = []
        self.last_loss = 0.0  # of the newest training step

    @property
    def best_epoch(self) -> int:
        """The first epoch with the lowest finite validation loss, or 0."""
        finite = [e for e in self.epochs if np.isfinite(e.validation_loss)]
        return min(finite, key=lambda e: e.validation_loss).epoch if finite else 0

    @property
    def stopped_early(self) -> bool:
        """Whether patience ended it; it does not after the first epoch, as in Keras."""
        done = len(self.epochs)
        return 1 < done < self.config.epochs and done - self.best_epoch >= self.config.patience

    @property
    def over(self) -> bool:
        """Whether there is nothing left to learn."""
        return len(self.epochs) >= self.config.epochs or self.stopped_early

    def check(self, part: str = "train") -> Check:
        """Return the check that stops a training whose loss is no number any more.

        Args:
            part: of the configuration, for the check's name.
        """
        loss, where = self.last_loss, f"epoch {len(self.epochs)}"
        if not np.isfinite(loss):
            where = f"epoch {len(self.epochs) + 1}, training images"
        elif not self.best_epoch:  # batch statistics can keep the training loss finite while the model answers NaN
            loss, where = self.epochs[-1].validation_loss, f"{where}, validation images"
        remedy = f"lower {part}.learning_rate, or look for broken values in the training images"
        return Check(
            name=f"{part}.loss",
            value=loss,
            op="<",
            limit=float("inf"),
            detail=where,
            remedy="" if np.isfinite(loss) else remedy,
        )

    def facts(self) -> dict[str, Any]:
        """Return what reports tell of it."""
        return {"best_epoch": self.best_epoch, "stopped_early": self.stopped_early, "history": tuple(self.epochs)}

    def dump(self) -> dict[str, Any]:
        """Return what a restart needs, as plain values."""
        return {"epochs": [epoch.model_dump(mode="json") for epoch in self.epochs], "last_loss": self.last_loss}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `dump` returned."""
        self.epochs = [EpochMetrics.model_validate(epoch) for epoch in state["epochs"]]
        self.last_loss = state["last_loss"]


class TrainingLoop(ABC):
    """Epoch after epoch, for frameworks without a loop of their own. A kill costs the epoch that it interrupts.

    An epoch's order depends on the seed and its number alone.
    """

    def __init__(self, config: LearningConfig, workspace: Workspace) -> None:
        self.history, self.out = History(config), workspace

    def run(self, part: str = "train") -> Check:
        """Learn, from the last checkpoint on; return `History.check`, without which there is no network worth keeping.

        Args:
            part: of the configuration, for the check's name.
        """
        self._resume()
        while not self.history.over:
            number = len(self.history.epochs) + 1
            train_loss = self._epoch(number)
            if not np.isfinite(train_loss):
                break
            validation_loss, accuracy = self._validate()
            epoch = EpochMetrics(
                epoch=number,
                train_loss=train_loss,
                validation_loss=validation_loss,
                validation_accuracy=accuracy,
                learning_rate=self._rate(number),
            )
            self.history.epochs.append(epoch)
            self._save(best=self.history.best_epoch == number)
            self.out.progress(number, self.history.config.epochs, "epoch", **epoch.model_dump(exclude={"epoch"}))
        return self.history.check(part)

    @abstractmethod
    def _epoch(self, number: int) -> float:
        """Learn from all training images once; return the mean loss, or the first one that is no number."""

    @abstractmethod
    def _validate(self) -> tuple[float, float]:
        """Return loss and accuracy on the validation images."""

    @abstractmethod
    def _rate(self, number: int) -> float:
        """Return the learning rate at the end of an epoch."""

    @abstractmethod
    def _save(self, *, best: bool) -> None:
        """Write down everything that a restart needs; remember the weights that are the best so far."""

    @abstractmethod
    def _resume(self) -> None:
        """Read the checkpoint, if there is one."""


def shuffled(count: int, size: int, rng: np.random.Generator) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the samples' numbers in a new order, batch by batch, the last one smaller and never alone."""
    order = rng.permutation(count)
    for start in range(0, count, size):
        chosen = order[start : start + size]
        # batch normalisation has no variance of one image
        yield chosen if len(chosen) > 1 else np.append(chosen, order[0])


def require_labelled(splits: Mapping[str, Split], *names: str) -> dict[str, Split]:
    """Return the splits that a training needs.

    Raises:
        StageError: when one is missing, or has no labels.
    """
    for name in names:
        if name not in splits:
            raise StageError(f"training needs the split '{name}'; the data has {sorted(splits)}")
        if splits[name].labels is None:
            raise StageError(f"training needs labels; the split '{name}' has none")
    return {name: splits[name] for name in names}


def measured(splits: Mapping[str, Split]) -> Split:
    """Return the split that a model trained elsewhere is measured on.

    Raises:
        StageError: when there is none.
    """
    if "test" not in splits:
        raise StageError(f"the model is measured on the split 'test'; the data has {sorted(splits)}")
    return splits["test"]


def store_golden_and_predictions(
    golden: Golden, predict: Predict, splits: Mapping[str, Split], signature: Signature, workspace: Workspace
) -> dict[str, Artifact]:
    """Save the golden answers and, where there are labels, the class numbers that the model predicts.

    Of the training split as many samples as there are for testing, evenly spread, tell how well it is remembered.

    Args:
        golden: the model's answers; those for the test split are not asked for again.
        predict: the model.
        splits: each one with labels, but for the calibration split, is predicted.
        signature: of the model, with `answer`.
        workspace: where to write.
    """
    files = {"golden": workspace.folder / "golden.npz"}
    golden.save(files["golden"])
    predictions: NamedArrays = {}
    for name, split in splits.items():
        if name == "calibration" or split.labels is None:
            continue
        chosen = np.arange(len(split))
        if name == "train" and len(split) > len(splits["test"]):
            chosen = np.linspace(0, len(split) - 1, len(splits["test"])).round().astype(np.int64)
        outputs = golden.test_outputs if name == "test" else predict_split(predict, split, chosen)
        found = (
            predicted_classes(outputs[signature.primary_output], signature.labels) if signature.primary_output else None
        )
        if found is None:
            shapes = {output: f"{array.dtype}{list(array.shape)}" for output, array in outputs.items()}
            raise StageError(
                f"the data has labels, but no output is known to name a class: {shapes}; "
                "name one with train.primary_output (scores (n, classes), or a label a sample), or leave the labels out"
            )
        predictions |= {name: found, f"{name}_labels": split.labels[chosen]}
    if predictions:
        files["predictions"] = workspace.folder / "predictions.npz"
        np.savez(files["predictions"], allow_pickle=False, **predictions)
    return {kind: workspace.store_file(path) for kind, path in files.items()}
