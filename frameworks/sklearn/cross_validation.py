"""Train an estimator again on parts of its training samples."""

from pathlib import Path

from frameworks.sklearn.estimator import estimator_inputs, load
from gauntlet.core.arrays import Array, NamedArrays, as_float32
from gauntlet.core.errors import StageError

SEED = 0


def cross_validate(folds: int, model: Path, samples: NamedArrays, labels: Array) -> list[float]:
    """Return the accuracy on each part of the samples of an estimator that was trained on the others.

    `samples` are arrays of shape (n, ...) by input, `labels` the indices of their classes. The estimators have the
    settings of the one in the file.

    Raises:
        StageError: when scikit-learn cannot train on a part.
    """
    from sklearn.base import clone
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    estimator = load(model, trusted=None)
    inputs = estimator_inputs(estimator, as_float32(samples))
    parts = StratifiedKFold(folds, shuffle=True, random_state=SEED)
    try:
        scores = cross_val_score(clone(estimator), inputs, labels, cv=parts, scoring="accuracy", error_score="raise")
    except ValueError as error:
        raise StageError(f"evaluate.folds: {folds}: scikit-learn cannot train on a part: {error}") from error
    accuracies: list[float] = scores.tolist()
    return accuracies
