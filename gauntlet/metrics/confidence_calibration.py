"""Whether a classifier's confidence matches its accuracy, and temperature scaling, which makes it match better.

Guo et al., On Calibration of Modern Neural Networks, ICML 2017.
"""

from collections.abc import Iterator

import numpy as np
from pydantic import Field
from scipy.special import log_softmax, logsumexp

from gauntlet.core.arrays import Array, Floats
from gauntlet.core.frozen import Frozen, Number

BINS = 15
"""Of equal width, as in the paper."""
TEMPERATURES = (0.05, 20.0)
MAX_FITTED_SCORES = 2_000_000
"""Of more scores, an evenly spaced part of the samples fits the temperature: it is one number."""
CHUNK_SCORES = 1_000_000
EIGHT_BITS, LARGEST_ROUNDING = 500, 0.5
"""Half a step of eight bits is 1 / 510 for each class; so many logits are never positive alone with such a sum."""
EPSILON = 1e-12
"""Least probability of a class, whose logarithm would be infinite otherwise."""


class ReliabilityBin(Frozen):
    """The samples whose confidence is in one of 15 bins of equal width; empty bins are left out."""

    confidence: Number = Field(description="mean probability of the predicted class")
    accuracy: Number = Field(description="share of the samples that are predicted correctly")
    images: int


class CalibrationScores(Frozen):
    """How good the probabilities are on the test samples; 0 is perfect for all three."""

    log_loss: Number = Field(description="mean negative logarithm of the true class's probability")
    ece: Number = Field(
        description="expected calibration error: mean distance of confidence and accuracy over the bins, by samples"
    )
    brier_score: Number = Field(description="mean squared distance of the probabilities from the truth, 0 to 2")
    bins: tuple[ReliabilityBin, ...]

    def metrics(self, *, calibrated: bool) -> dict[str, float | None]:
        """Return the scores by their names in MLflow; `calibrated` after temperature scaling."""
        prefix = "quality.calibrated" if calibrated else "quality"
        return {f"{prefix}.{name}": getattr(self, name) for name in ("log_loss", "ece", "brier_score")}


class ConfidenceCalibration(Frozen):
    """The calibration on the test samples, before and after temperature scaling."""

    before: CalibrationScores
    after: CalibrationScores | None = Field(None, description="None without held-out samples to fit the temperature")
    temperature: Number | None = Field(None, description="divides the scores; above 1, the model was overconfident")
    fitted_on: str | None = Field(None, description="the split that fitted it, never the test split")
    fitted_images: int = 0

    @property
    def best(self) -> CalibrationScores:
        """The scores at the fitted temperature, or the model's own without one."""
        return self.after or self.before


def has_scores(scores: Array, truth: Array) -> bool:
    """Return whether these are finite scores, shape (n, classes), with a column for each true class."""
    if scores.dtype.kind != "f" or scores.ndim != 2 or not len(truth):
        return False
    return bool(truth.min() >= 0 and truth.max() < scores.shape[1] and np.isfinite(scores).all())


def calibrate_confidence(
    scores: Array, truth: Array, held_out: tuple[str, Array, Array] | None
) -> ConfidenceCalibration | None:
    """Return the calibration on test samples: scores of shape (n, classes), truth (n,), class indices.

    `held_out` is another split's name, scores and truth, which fit the temperature. None if the scores have no column
    for a true class, or are not finite.
    """
    if not has_scores(scores, truth):
        return None
    before = calibration_scores(scores, truth)
    if held_out is None or not has_scores(*held_out[1:]):
        return ConfidenceCalibration(before=before)
    split, fit_scores, fit_truth = held_out
    temperature = fit_temperature(fit_scores, fit_truth)
    return ConfidenceCalibration(
        before=before,
        after=calibration_scores(scores, truth, temperature),
        temperature=temperature,
        fitted_on=split,
        fitted_images=len(fit_truth),
    )


def class_probabilities(scores: Array, temperature: float = 1.0) -> Array:
    """Return probabilities, shape (n, classes): the softmax of scores / temperature.

    Scores that are probabilities already, not negative and with the sum 1 in every row, stay as they are; with another
    temperature than 1, their logarithms are the scores.
    """
    as_given = are_probabilities(scores)
    if as_given and temperature == 1:
        return scores
    return np.asarray(np.exp(log_softmax(_logits(scores, as_given) / temperature, axis=1)))


def are_probabilities(scores: Array) -> bool:
    """Return whether no score is negative and every row sums to 1, but for rounding: that of eight bits adds up.

    Rows with NaN or infinite scores tell nothing of the others.
    """
    scores = scores[np.isfinite(scores.max(axis=1, initial=0))]
    rounding = min(scores.shape[1] / EIGHT_BITS, LARGEST_ROUNDING)
    return bool(scores.min(initial=0) >= 0 and (np.abs(scores.sum(axis=1) - 1) <= rounding).all())


def calibration_scores(scores: Array, truth: Array, temperature: float = 1.0) -> CalibrationScores:
    """Return log loss, expected calibration error and Brier score, in bounded memory."""
    confidence, right, losses, brier = (
        np.concatenate(parts) for parts in zip(*_by_sample(scores, truth, temperature), strict=True)
    )
    number = np.minimum((confidence * BINS).astype(int), BINS - 1)
    bins = tuple(
        ReliabilityBin(
            confidence=float(confidence[chosen].mean()), accuracy=float(right[chosen].mean()), images=int(chosen.sum())
        )
        for chosen in (number == index for index in range(BINS))
        if chosen.any()
    )
    return CalibrationScores(
        log_loss=float(losses.mean()),
        ece=sum(bar.images * abs(bar.confidence - bar.accuracy) for bar in bins) / len(truth),
        brier_score=float(brier.mean()),
        bins=bins,
    )


def fit_temperature(scores: Array, truth: Array) -> float:
    """Return the temperature with the least log loss on held-out samples, within `TEMPERATURES`.

    The true class counts (n + 1) / (n + 2) for n samples, the others share the rest (Platt, 1999): otherwise, a model
    that predicts every held-out sample correctly would have no best temperature but 0, full confidence.
    """
    from scipy.optimize import minimize_scalar

    step = 1 + scores.size // MAX_FITTED_SCORES
    logits, truth = _logits(scores[::step], are_probabilities(scores)), truth[::step]
    count, classes = logits.shape
    rest = 1 / (count + 2) / max(1, classes - 1)
    of_truth = logits[np.arange(count), truth]
    target = ((count + 1) / (count + 2) - rest) * of_truth + rest * logits.sum(axis=1)

    def loss(log_temperature: float) -> float:
        scale = np.exp(-log_temperature)
        return float(np.mean(logsumexp(logits * scale, axis=1) - scale * target))

    bounds = tuple(np.log(TEMPERATURES))
    return float(np.exp(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-3}).x))


def _by_sample(scores: Array, truth: Array, temperature: float) -> Iterator[tuple[Array, Array, Array, Array]]:
    """Yield for chunks of samples: confidence, whether the prediction is right, log loss, Brier score."""
    as_given, rows = are_probabilities(scores), max(1, CHUNK_SCORES // scores.shape[1])
    for start in range(0, len(scores), rows):
        labels = truth[start : start + rows]
        logs = log_softmax(_logits(scores[start : start + rows], as_given) / temperature, axis=1)
        of_truth, shares = logs[np.arange(len(logs)), labels], np.exp(logs)
        brier = (shares**2).sum(axis=1) - 2 * np.exp(of_truth) + 1
        yield shares.max(axis=1), shares.argmax(axis=1) == labels, -of_truth, brier


def _logits(scores: Array, as_given: bool) -> Floats:
    """Return scores whose softmax are the probabilities, the largest of each row 0; `as_given`: they are already."""
    wide = scores.astype(np.float64)
    wide = np.log(np.maximum(wide, EPSILON)) if as_given else wide
    return np.asarray(wide - wide.max(axis=1, keepdims=True))
