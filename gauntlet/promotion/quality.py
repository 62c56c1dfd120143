"""What a challenger's predictions lose against the champion's, in the metric of the problem.

With labels, requests are right or wrong where they have one class each; any other problem has its own metric (mIoU,
characters right, R², macro F1, ...). Without labels, the champion's predictions are the truth: requests are predicted
the same or not (classes, texts, objects), or agree by degrees (masks, numbers, vectors). Outputs without a meaning
agree up to a signal-to-noise ratio, request by request.
"""

import math
from typing import cast

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.signature import Signature
from gauntlet.metrics.paired_accuracy import Z_95, LossVerdict, least_count, pair_accuracies, resolve
from gauntlet.problems import problem_of
from gauntlet.problems.base import MetricLoss, Problem
from gauntlet.problems.classification import Classification
from gauntlet.promotion.replay_facts import QualityDrop

MIN_SAMPLE_SQNR_DB = 20.0
"""Outputs without a meaning agree for a request where the difference has at most 1 % of the signal's energy."""


def quality_drop(
    signatures: tuple[Signature, Signature], outputs: tuple[NamedArrays, NamedArrays], truth: Array | None
) -> QualityDrop:
    """Compare the outputs of champion and challenger, by name and of shape (n, ...), for the same n requests.

    `truth` has the name of each request's class, shape (n,), or the form that `Problem.score` takes.

    Raises:
        ConfigError: when the predictions cannot be compared with each other, or with the truth.
    """
    names = [_class_names(signature, found) for signature, found in zip(signatures, outputs, strict=True)]
    if all(found is not None for found in names):
        before, after = (np.array(found) for found in names)
        if truth is None:
            return _paired_with_champion(before == after)
        return _paired_with_labels(before == truth, after == truth)
    problem, predictions = _comparable(signatures, outputs)
    if predictions is None:
        if truth is not None:
            raise ConfigError("labels were given, but the models' outputs are no predictions. Fix: replay no labels")
        return _paired_with_champion(agreeing_outputs(*outputs))
    try:
        return _own_metric(problem, *predictions, truth)
    except (StageError, ValueError) as error:  # NumPy's, where shapes differ
        raise ConfigError(f"the predictions cannot be compared with the labels: {error}") from error


def drop_verdict(found: QualityDrop, limit: float) -> tuple[LossVerdict, int | None]:
    """Return the verdict and, if it is not resolved, the number of requests that would probably resolve it."""
    if found.paired is not None:
        return resolve(found.paired, limit)
    loss = cast(MetricLoss, found.loss)
    verdict = loss.verdict(limit)
    return verdict, _requests_to_resolve(loss, limit) if verdict == "not resolved" else None


def widened(loss: MetricLoss) -> MetricLoss:
    """Return the loss with a wider interval, as if one more request were lost completely, and one were gained.

    A bootstrap of a few requests that all agree has no width, so it would prove anything. Bonett and Price's interval
    of an accuracy (`gauntlet.metrics.paired_accuracy.drop_interval`) has one, by the variance that is added here.
    """
    more = _added_half_width(loss.samples)
    return loss.replace(
        drop_low=loss.drop - math.hypot(loss.drop - loss.drop_low, more),
        drop_high=loss.drop + math.hypot(loss.drop_high - loss.drop, more),
    )


def agreeing_outputs(before: NamedArrays, after: NamedArrays) -> npt.NDArray[np.bool_]:
    """Return for which requests all outputs agree: floats up to `MIN_SAMPLE_SQNR_DB`, all others exactly."""
    agree = np.ones(len(next(iter(before.values()))), np.bool_)
    for name, expected in before.items():
        actual = after.get(name)
        if actual is None or actual.shape != expected.shape:
            raise ConfigError(f"output {name!r} of the champion is missing in the challenger, or has another shape")
        if expected.dtype.kind != "f":
            agree &= (actual == expected).reshape(len(agree), -1).all(axis=1)
            continue
        a, b = (array.astype(np.float64).reshape(len(agree), -1) for array in (actual, expected))
        noise, signal = ((a - b) ** 2).sum(axis=1), ((b - (b.mean(axis=0) if len(b) > 1 else 0)) ** 2).sum(axis=1)
        agree &= noise <= signal * 10 ** (-MIN_SAMPLE_SQNR_DB / 10)  # false where one is NaN
    return agree


def _class_names(signature: Signature, outputs: NamedArrays) -> list[str] | None:
    """Return the name of the class predicted for each request, or None for a model that predicts no classes."""
    problem = problem_of(signature)
    if not isinstance(problem, Classification):
        return None
    return [prediction.top[0].label for prediction in problem.decode(outputs)]


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


def _own_metric(problem: Problem, before: Array, after: Array, truth: Array | None) -> QualityDrop:
    if truth is not None:
        scores = {"scores": problem.score(after, truth), "champion_scores": problem.score(before, truth)}
        return QualityDrop(loss=widened(problem.loss(before, after, truth)), **scores)
    same = problem.same(before, after)
    return (
        QualityDrop(loss=widened(problem.disagreement(before, after))) if same is None else _paired_with_champion(same)
    )


def _paired_with_champion(same: npt.NDArray[np.bool_]) -> QualityDrop:
    return QualityDrop(paired=pair_accuracies(np.ones_like(same), same))


def _paired_with_labels(before: npt.NDArray[np.bool_], after: npt.NDArray[np.bool_]) -> QualityDrop:
    scores = [{"accuracy": float(right.mean())} for right in (after, before)]
    return QualityDrop(paired=pair_accuracies(before, after), scores=scores[0], champion_scores=scores[1])


def _added_half_width(samples: float) -> float:
    """Return what two more samples, lost and gained, add to half the width of a 95 % interval, in quadrature."""
    return Z_95 * math.sqrt(2) / (samples + 2)


def _requests_to_resolve(loss: MetricLoss, limit: float) -> int | None:
    """Return how many requests would probably resolve the verdict, if the change stays as it is."""
    more = _added_half_width(loss.samples)
    variances = [max(0.0, half**2 - more**2) for half in (loss.drop - loss.drop_low, loss.drop_high - loss.drop)]

    def is_resolved(requests: int) -> bool:
        low, high = (
            math.sqrt(variance * loss.samples / requests + _added_half_width(requests) ** 2) for variance in variances
        )
        return loss.drop + high <= limit or loss.drop - low > limit

    return least_count(is_resolved)
