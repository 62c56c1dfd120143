"""Training shared by all frameworks: configuration, history, the epoch loop, and the stored golden outputs."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.artifact import Artifact, fsync
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.kinds import required
from gauntlet.core.report import Check
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, Predict, predict_split
from gauntlet.datasets.splits import Split, Splits, batches, require_labels
from gauntlet.problems import problem_of
from gauntlet.problems.classification import Classification

VALIDATION_BATCH = 64
LABEL_SMOOTHING = 0.1
"""Of a classifier's training (Szegedy et al. 2016)."""

Device = Literal["auto", "cpu", "cuda"]


class EpochMetrics(Frozen):
    """One pass over the training images."""

    epoch: int = Field(ge=1)
    train_loss: Number
    validation_loss: Number
    validation_accuracy: Number = Field(description="or the primary metric of a problem without classes")
    learning_rate: Number = Field(description="at the end of the epoch")
    train_accuracy: Number | None = Field(
        None, description="of a classifier in PyTorch or Keras on the training images, as each step saw them"
    )


class LoopConfig(Frozen):
    """Hyperparameters of a training, in any framework and for any problem."""

    everyday: ClassVar = {"epochs": 20}
    epochs: int = Field(2, ge=1, le=1000, description="passes over the training images, at most")
    patience: int = Field(3, ge=1, description="stop after this many epochs without a lower validation loss")
    batch_size: int = Field(32, ge=2, description="images per step")
    learning_rate: float = Field(1e-3, gt=0, description="of AdamW, at the start of the cosine schedule")
    weight_decay: float = Field(0.01, ge=0)
    seed: int = Field(0, ge=0)
    device: Device = Field("auto", description="auto: an NVIDIA GPU if found, else the CPU")


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


def require_labelled(splits: Splits, *names: str) -> dict[str, Split]:
    """Return the named splits; raise StageError if one is missing or has no labels."""
    for name in names:
        if name not in splits:
            raise StageError(f"training needs the split '{name}'; the data has {sorted(splits)}")
        if splits[name].labels is None:
            raise StageError(f"training needs labels; the split '{name}' has none")
    return {name: splits[name] for name in names}


def require_test_split(splits: Splits) -> Split:
    """Return the split that a pretrained model is measured on; raise StageError if it is missing."""
    if "test" not in splits:
        raise StageError(f"the model is measured on the split 'test'; the data has {sorted(splits)}")
    return splits["test"]


def splits_to_score(splits: Splits) -> dict[str, Split]:
    """Return what a pretrained model predicts: the test split, and one that may fit the temperature of its confidence.

    Raise StageError without a test split.
    """
    held_out = next((name for name in ("validation", "calibration") if name in splits), None)
    return {"test": require_test_split(splits)} | ({held_out: splits[held_out]} if held_out else {})


def store_golden_and_predictions(
    golden: Golden, predict: Predict, splits: Splits, signature: Signature, workspace: Workspace
) -> dict[str, Artifact]:
    """Store the golden outputs and, with labels, what the model predicts, in the terms of its problem.

    Predicted are the splits with labels: of the test split the golden outputs, of `train` and `calibration` an evenly
    spaced sample no larger than it. `signature.primary_output` is the prediction; where it is a score per class, the
    scores of the splits that did not train the model are stored, too.
    """
    files = {"golden": workspace.folder / "golden.npz"}
    golden.save(files["golden"])
    predictions: NamedArrays = {}
    if heads := getattr(splits["test"], "heads", None):  # whose labels must fit
        required("heads", "compare", "labels of further outputs")(golden, signature, golden.test_outputs, heads)
    primary, problem = signature.primary_output, problem_of(signature)
    for name, split in splits.items():
        if split.labels is None:
            continue
        chosen = np.arange(len(split))
        if name != "validation" and len(split) > len(splits["test"]):
            chosen = np.linspace(0, len(split) - 1, len(splits["test"])).round().astype(np.int64)
        outputs = golden.test_outputs if name == "test" else predict_split(predict, split, chosen)
        predicted = problem.predictions_of(outputs) if primary else None
        if predicted is None:
            shapes = {output: f"{array.dtype}{list(array.shape)}" for output, array in outputs.items()}
            fix = "name one with train.primary_output, say what the labels are with data.task, or remove them"
            fix = "say with data.decode how outputs become boxes" if signature.task == "detection" else fix
            unknown = f"the data has labels for {signature.task}, but no output is known to predict them"
            raise StageError(f"{unknown}: {shapes}. Fix: {fix}")
        predictions |= {name: predicted, f"{name}_labels": split.labels[chosen]}
        scores = outputs[primary] if primary else None
        if name != "train" and isinstance(problem, Classification) and scores is not None and scores.dtype.kind == "f":
            predictions[f"{name}_scores"] = problem.class_scores(scores)
    if predictions:
        files["predictions"] = workspace.folder / "predictions.npz"
        np.savez(files["predictions"], allow_pickle=False, **predictions)
    return {kind: workspace.store_file(path) for kind, path in files.items()}
