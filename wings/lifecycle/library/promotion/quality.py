"""What a challenger's predictions lose against the champion's, in the metric of the problem.

With labels, requests are right or wrong where they have one class each; any other problem has its own metric (mIoU,
characters right, R², macro F1, ...). Without labels, the champion's predictions are the truth: requests are predicted
the same or not (classes, texts, objects), or agree by degrees (masks, numbers, vectors). Outputs without a meaning
agree up to a signal-to-noise ratio, request by request.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.ragged import comparable
from gauntlet.core.signature import Signature
from gauntlet.metrics.class_drops import ClassDrop, largest_drop
from gauntlet.metrics.output_noise import sample_noise_db
from gauntlet.metrics.paired_accuracy import (
    LossVerdict,
    PairedChange,
    added_half_width,
    least_count,
    pair_accuracies,
    resolve,
)
from gauntlet.problems import problem_of
from gauntlet.problems.base import Problem
from gauntlet.problems.classification import Classification

MIN_SAMPLE_SQNR_DB = 20.0
"""Outputs without a meaning agree for a request where the noise of no slice has over 1 % of the energy it varies by."""


class Quality(NamedTuple):
    """What was compared of champion and challenger."""

    change: PairedChange
    """From champion to challenger."""
    challenger: dict[str, float]
    """Its metrics, with labels."""
    champion: dict[str, float]
    class_drop: ClassDrop | None
    """Of the class that loses most."""
    ranking: PairedChange | None = None
    """Of the mean ROC AUC over the classes, with labels."""


def quality_drop(
    signatures: tuple[Signature, Signature], outputs: tuple[NamedArrays, NamedArrays], truth: Array | None
) -> Quality:
    """Compare the outputs of champion and challenger, by name and of shape (n, ...), for the same n requests.

    `truth` has the name of each request's class, shape (n,), or the form that `Problem.score` takes.

    Raises:
        ConfigError: when the predictions cannot be compared with each other, or with the truth.
    """
    names = [_class_names(signature, arrays) for signature, arrays in zip(signatures, outputs, strict=True)]
    if all(classes is not None for classes in names):
        before, after = (np.array(classes) for classes in names)
        classes, codes = np.unique([before, after, after if truth is None else truth], return_inverse=True)
        old, new, true = codes.reshape(3, -1)
        drop = largest_drop(old, new, classes.tolist(), None if truth is None else true)
        if truth is None:
            return _agreement(before == after, drop)
        change, labels = pair_accuracies(before == truth, after == truth), list(signatures[0].labels)
        numbers = np.array([labels.index(name) if name in labels else -1 for name in truth])
        quality = Quality(change, {"accuracy": float(change.after)}, {"accuracy": float(change.before)}, drop)
        return quality._replace(ranking=_lost_ranking(signatures, outputs, numbers))
    problem, predictions = _comparable(signatures, outputs)
    if predictions is None:
        if truth is not None:
            raise ConfigError("labels were given, but the models' outputs are no predictions. Fix: replay no labels")
        return _agreement(agreeing_outputs(*outputs))
    try:
        quality = _own_metric(problem, *predictions, truth)
        return quality if truth is None else quality._replace(ranking=_lost_ranking(signatures, outputs, truth))
    except (StageError, ValueError) as error:  # NumPy's, where shapes differ
        raise ConfigError(f"the predictions cannot be compared with the labels: {error}") from error


def drop_verdict(change: PairedChange, limit: float) -> tuple[LossVerdict, int | None]:
    """Return the verdict and, if it is not resolved, the number of requests that would probably resolve it."""
    if change.lost is not None:
        return resolve(change, limit)
    verdict = change.verdict(limit)
    return verdict, _requests_to_resolve(change, limit) if verdict == "not resolved" else None


def agreeing_outputs(before: NamedArrays, after: NamedArrays) -> npt.NDArray[np.bool_]:
    """Return for which requests all outputs agree: floats up to `MIN_SAMPLE_SQNR_DB`, all others exactly."""
    agree = np.ones(len(next(iter(before.values()))), np.bool_)
    for name, expected in before.items():
        if name not in after or not (pair := comparable([after[name]], [expected])):
            raise ConfigError(f"output {name!r} of the champion is missing in the challenger, or has another shape")
        [(actual, expected)] = pair
        if expected.dtype.kind == "f":
            agree &= sample_noise_db(actual, expected) >= MIN_SAMPLE_SQNR_DB  # false where one is NaN
        else:
            agree &= (actual == expected).reshape(len(agree), -1).all(axis=1)
    return agree


def _class_names(signature: Signature, outputs: NamedArrays) -> list[str] | None:
    """Return the name of the class predicted for each request, or None for a model that predicts no classes."""
    problem = problem_of(signature)
    if not isinstance(problem, Classification):
        return None
    return [each.top[0].label for each in problem.decode(outputs)]


def _lost_ranking(
    signatures: tuple[Signature, Signature], outputs: tuple[NamedArrays, NamedArrays], truth: Array
) -> PairedChange | None:
    """Return what the challenger loses of the classes' ranking; None where both have other classes, or no scores."""
    old, new = map(problem_of, signatures)
    labels = old.signature.labels
    scores = outputs[0][old.primary_output], outputs[1][new.primary_output]
    if not labels or labels != new.signature.labels or scores[0].shape != scores[1].shape:
        return None
    return old.lost_ranking(*scores, truth)


def _comparable(
    signatures: tuple[Signature, Signature], outputs: tuple[NamedArrays, NamedArrays]
) -> tuple[Problem, tuple[Array, Array] | None]:
    """Return the champion's problem and the predictions of both; no predictions where only the outputs compare."""
    old, new = map(problem_of, signatures)
    before, after = old.predictions_of(outputs[0]), new.predictions_of(outputs[1])
    if type(old) is not type(new) or before is None or after is None:
        return old, None
    labels = old.signature.labels, new.signature.labels
    if labels[0] != labels[1] and before.dtype.kind != "U":  # texts are compared as such
        raise ConfigError(f"the champion's labels are {labels[0]}, the challenger's {labels[1]}; expected the same")
    if before.ndim == 2 and before.shape != after.shape:
        sizes = f"{before.shape[1]} values a request, the challenger {after.shape[1]}"
        raise ConfigError(f"the champion predicts {sizes}; expected as many")
    return old, (before, after)


def _own_metric(problem: Problem, before: Array, after: Array, truth: Array | None) -> Quality:
    if truth is not None:
        scores = problem.score(after, truth), problem.score(before, truth)
        drop = problem.largest_class_drop(before, after, truth)
        return Quality(problem.loss(before, after, truth).widened(), *scores, drop)
    same, drop = problem.same(before, after), problem.largest_class_drop(before, after)
    if same is not None:
        return _agreement(same, drop)
    return Quality(problem.disagreement(before, after), {}, {}, drop)


def _agreement(same: npt.NDArray[np.bool_], drop: ClassDrop | None = None) -> Quality:
    return Quality(pair_accuracies(np.ones_like(same), same), {}, {}, drop)


def _requests_to_resolve(change: PairedChange, limit: float) -> int | None:
    """Return how many requests would probably resolve the verdict, if the change stays as it is."""
    more = added_half_width(change.n)
    variances = [max(0.0, half**2 - more**2) for half in (change.drop - change.low, change.high - change.drop)]

    def is_resolved(requests: int) -> bool:
        low, high = (
            math.sqrt(variance * change.n / requests + added_half_width(requests) ** 2) for variance in variances
        )
        return change.drop + high <= limit or change.drop - low > limit

    return least_count(is_resolved)
