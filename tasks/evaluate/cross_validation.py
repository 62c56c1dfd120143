"""Cross-validation: how much the accuracy depends on which samples train the model."""

import math
from collections.abc import Mapping

import numpy as np
from pydantic import Field

from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.splits import batches, require_labels
from gauntlet.frameworks.framework import frameworks

ROWS = 1024  # read at once


class CrossValidation(Frozen):
    """Accuracies on the parts of the training split, each by a model that was trained without that part."""

    accuracies: tuple[Number, ...] = Field(description="by part")
    mean: Number
    low: Number = Field(description="lower end of the 95 % interval of the mean, by a t-test corrected for the overlap")
    high: Number
    images: int = Field(description="in the training split")


def cross_validate(
    folds: int, workspace: Workspace, model: Artifact | None, splits: Mapping[str, Artifact]
) -> CrossValidation:
    """Train a model with the same settings `folds` times on the training split; the test split is not used.

    Raises:
        StageError: without a labelled training split, or when the framework cannot train on a part.
    """
    split = read_split(workspace.path(splits["train"])) if "train" in splits else None
    if model is None or split is None or split.labels is None:
        names = f"the data has {sorted(splits)}"
        raise StageError(f"evaluate.folds needs a training split with labels; {names}. Fix: add one, or remove the key")
    rows = [*batches(split, ROWS)]
    columns = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    path = workspace.path(model)
    train_again = next(f.cross_validate for f in frameworks() if path.suffix in f.suffixes and f.cross_validate)
    return summarize(train_again(folds, path, columns, require_labels(split)), len(split))


def summarize(accuracies: list[float], images: int) -> CrossValidation:
    """Return mean and interval: the parts' trainings overlap, which widens it (Nadeau and Bengio, 2003)."""
    from scipy.stats import t

    folds, mean = len(accuracies), float(np.mean(accuracies))
    error = math.sqrt((1 / folds + 1 / (folds - 1)) * float(np.var(accuracies, ddof=1)))
    half = float(t.ppf(0.975, folds - 1)) * error
    low, high = max(0.0, mean - half), min(1.0, mean + half)
    return CrossValidation(accuracies=tuple(accuracies), mean=mean, low=low, high=high, images=images)
