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
from gauntlet.frameworks.sklearn import estimator as sklearn_estimator

ROWS = 1024  # read at once
SEED = 0


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
    """Train an estimator with the same settings `folds` times on the training split; the test split is not used.

    Raises:
        StageError: without a labelled training split, or when scikit-learn cannot train on a part.
    """
    from sklearn.base import clone
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    split = read_split(workspace.path(splits["train"])) if "train" in splits else None
    if model is None or split is None or split.labels is None:
        found = f"the data has {sorted(splits)}"
        raise StageError(f"evaluate.folds needs a training split with labels; {found}. Fix: add one, or remove the key")
    truth = require_labels(split)
    rows = [sklearn_estimator.as_float32(batch) for batch in batches(split, ROWS)]
    inputs = sklearn_estimator.estimator_inputs({name: np.concatenate([r[name] for r in rows]) for name in rows[0]})
    estimator = sklearn_estimator.load(workspace.path(model), trusted=None)
    parts = StratifiedKFold(folds, shuffle=True, random_state=SEED)
    try:
        accuracies = cross_val_score(clone(estimator), inputs, truth, cv=parts, scoring="accuracy", error_score="raise")
    except ValueError as error:
        raise StageError(f"evaluate.folds: {folds}: scikit-learn cannot train on a part: {error}") from error
    return summarize(accuracies.tolist(), len(split))


def summarize(accuracies: list[float], images: int) -> CrossValidation:
    """Return mean and interval: the parts' trainings overlap, which widens it (Nadeau and Bengio, 2003)."""
    from scipy.stats import t

    folds, mean = len(accuracies), float(np.mean(accuracies))
    error = math.sqrt((1 / folds + 1 / (folds - 1)) * float(np.var(accuracies, ddof=1)))
    half = float(t.ppf(0.975, folds - 1)) * error
    low, high = max(0.0, mean - half), min(1.0, mean + half)
    return CrossValidation(accuracies=tuple(accuracies), mean=mean, low=low, high=high, images=images)
