"""What the labels of a brought model's samples are, by their values and by the outputs that they are the truth of."""

from collections.abc import Callable

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Task
from gauntlet.datasets.truth import SIGN_NAMES, are_class_numbers, are_one_hot, task_of
from gauntlet.frameworks.trial_run import TrialRun
from gauntlet.problems.output_evidence import sums_to_one, within_unit

LOGITS = (-1.0, 2.0)
"""A fit of the numbers 0 and 1 hardly leaves this range; logits of a trained network do."""


def task_of_labels(labels: Array, trial: TrialRun, predict: Callable[[], NamedArrays]) -> Task:
    """Return the problem whose truth labels are, shape (n, ...), given what a model returns for each sample.

    Labels are classes where the outputs are scores of as many columns as classes, or one number for two of them: as
    numbers of any type, in a column, or one-hot. Numbers 0 and 1 in several columns are else independent classes,
    unless the outputs are scores of something else. Masks may have one channel, and be floats.
    """
    ranks = {len(output.shape) for output in trial.outputs if output.dtype.startswith("float")}
    likely, numbers = task_of(labels), labels.dtype.kind in "iuf"
    if numbers and ranks == {4} and labels.ndim >= 3 and _is_mask(labels):
        return "segmentation"
    if likely in ("tagging", "multi-label") and ranks == {3}:
        return "tagging"
    if numbers and labels.ndim in (1, 2) and labels.size == len(labels):
        return _of_column(labels.ravel(), trial, predict)
    columns = trial.scores.shape[1] if trial.scores else None
    if numbers and labels.ndim == 2 and labels.shape[1] == columns and np.isin(labels, (0, 1)).all():
        return "classification" if are_one_hot(labels) and not _independent(trial, predict) else "multi-label"
    return "regression" if likely == "tagging" and ranks and ranks <= {1, 2} else likely


def _of_column(labels: Array, trial: TrialRun, predict: Callable[[], NamedArrays]) -> Task:
    """Return the problem of one number per sample."""
    values, whole = {*np.unique(labels).tolist()}, labels.dtype.kind in "iu"
    if trial.scores:
        known = whole or trial.class_count or max(values) < int(trial.scores.shape[1])
        classes = known and are_class_numbers(labels)
        return "classification" if classes else task_of(labels)
    if not trial.one_number:
        return task_of(labels)
    if whole:
        return "classification" if values <= {0, 1} or values == {*map(int, SIGN_NAMES)} else "regression"
    outputs = _outputs(predict) if values == {0, 1} else None
    if outputs is None:
        return "regression"
    low, high = float(np.min(outputs)), float(np.max(outputs))
    return "classification" if within_unit(outputs) or low < LOGITS[0] or high > LOGITS[1] else "regression"


def _independent(trial: TrialRun, predict: Callable[[], NamedArrays]) -> bool:
    """Return whether scores are a probability for each class by itself."""
    outputs = _outputs(predict, trial.scores.name if trial.scores else None)
    return outputs is not None and within_unit(outputs) and not sums_to_one(outputs)


def _outputs(predict: Callable[[], NamedArrays], name: str | None = None) -> Array | None:
    """Return an output for some samples, by default the only one; None where the model fails on them."""
    try:
        outputs = predict()
    except StageError:  # the stages say more about it
        return None
    return outputs[name] if name else next(iter(outputs.values()))


def _is_mask(labels: Array) -> bool:
    """Return whether labels are a whole number for each pixel, with or without an axis of one channel."""
    return (labels.ndim == 3 or 1 in (labels.shape[1], labels.shape[-1])) and are_class_numbers(labels.ravel())
