"""Training shared by all frameworks: configuration, the splits that it needs, and the stored golden outputs."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.kinds import required
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, Predict, predict_split
from gauntlet.datasets.splits import Split, Splits
from gauntlet.problems import problem_of
from gauntlet.problems.classification import Classification

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
