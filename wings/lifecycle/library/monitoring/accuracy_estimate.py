"""The accuracy of recent predictions without their labels, estimated from calibrated confidence.

The confidence of a prediction becomes a probability that it is right by Platt scaling, fitted on the samples of the
evaluation, whose labels are known (Platt, 1999; the reference has the highest score of a sample alone, so temperature
scaling, which needs all of them, cannot be fitted again). The mean over recent samples estimates their accuracy, as
long as a confidence means what it meant in the evaluation. Nothing is said where that is not proven: where the
calibration fails on the evaluation itself, where labels contradict it, and where inputs or outputs have moved far.
"""

from dataclasses import dataclass

import numpy as np

from gauntlet.core.arrays import Floats
from gauntlet.request_log.input_statistics import IMAGE
from wings.lifecycle.library.monitoring.features import CONFIDENCE
from wings.lifecycle.library.monitoring.monitor_history import MonitorHistory
from wings.lifecycle.library.monitoring.monitor_result import EstimateResult
from wings.lifecycle.library.monitoring.reference import MonitoringReference
from wings.lifecycle.library.monitoring.risk_evidence import exceeds_wealth

MAX_ERROR = 0.02
"""Within which an estimate has to be: of its own interval, of the calibration's error, and of the labels'."""
MAX_DISTANCE = 0.2
"""Kolmogorov and Smirnov's distance of a feature from the evaluation, up to which calibration is shown to hold."""
MAX_BIAS = 0.005
"""Mean error that benchmarks find for changes within that distance; it widens the interval."""
MIN_SAMPLES = 300
BINS = 10
SIGNIFICANCE = 0.01
STEPS = 25
Z = 1.96
"""Of a 95 % interval."""


@dataclass(frozen=True)
class ConfidenceMap:
    """From a classifier's confidence to the probability of a right prediction."""

    weights: Floats
    """Of the confidence's log odds and of 1."""
    covariance: Floats

    @classmethod
    def fit(cls, confidence: Floats, right: Floats) -> "ConfidenceMap":
        """Return the map with the most likelihood for predictions that were right, 1, or wrong, 0.

        Platt's targets, (k + 1) / (k + 2) and 1 / (n - k + 2) for k of n, keep it finite where all are right.
        """
        from scipy.special import expit

        design, count = _design(confidence), right.sum()
        target = np.where(right == 1, (count + 1) / (count + 2), 1 / (len(right) - count + 2))
        weights = np.array([1.0, 0.0])
        information = np.eye(2)
        for _ in range(STEPS):  # Newton's method; a little ridge where all confidences are equal
            p = expit(design @ weights)
            information = (design * (p * (1 - p))[:, None]).T @ design + 1e-6 * np.eye(2)
            step = np.linalg.solve(information, design.T @ (target - p))
            weights = weights + np.clip(step, -2, 2)
        return cls(weights, np.asarray(np.linalg.inv(information), np.float64))

    def __call__(self, confidence: Floats) -> Floats:
        """Return the probability of each prediction to be right."""
        from scipy.special import expit

        return np.asarray(expit(_design(confidence) @ self.weights))

    def mean(self, confidence: Floats) -> tuple[float, float]:
        """Return the mean probability of predictions, and the half width of a 95 % interval of their accuracy."""
        p, design = self(confidence), _design(confidence)
        gradient = (design * (p * (1 - p))[:, None]).mean(axis=0)
        variance = gradient @ self.covariance @ gradient + (p * (1 - p)).mean() / len(p)
        return float(p.mean()), Z * float(np.sqrt(variance)) + MAX_BIAS


def estimate_accuracy(history: MonitorHistory, reference: MonitoringReference, start: int = 0) -> EstimateResult | None:
    """Return the estimated accuracy of the samples from `start` on, or why nothing can be said.

    None for a model without a confidence, or a reference without labels.
    """
    if CONFIDENCE not in reference.names or reference.wrong is None:
        return None
    place, recent = reference.names.index(CONFIDENCE), history.features[start:, : len(reference.names)]
    right = (~reference.wrong).astype(np.float64)
    calibrated = ConfidenceMap.fit(reference.features[:, place], right)
    silent = EstimateResult(samples=len(recent), since=start)
    if IMAGE[0] not in reference.names:
        return silent.replace(reason="the inputs are no images, and of others too little is watched to see a drift")
    recent = recent[~np.isnan(recent).any(axis=1)]
    if len(recent) < MIN_SAMPLES:
        return silent.replace(reason=f"it takes {MIN_SAMPLES} samples with statistics (`serve --log-inputs`)")
    gap = calibration_gap(calibrated(reference.features[:, place]), right)
    if gap > MAX_ERROR:
        return silent.replace(reason=f"the calibration fails: on the evaluation itself, it is {gap:.1%} off")
    distances = [distance(old, new) for old, new in zip(reference.features.T, recent.T, strict=True)]
    farthest = int(np.argmax(distances))
    moved = {"distance": distances[farthest], "farthest": reference.names[farthest]}
    silent = silent.replace(**moved)
    if distances[farthest] > MAX_DISTANCE:
        far = f"{reference.names[farthest]} is {distances[farthest]:.2f} away from the evaluation"
        return silent.replace(reason=f"{far}; calibration is shown to hold up to {MAX_DISTANCE:g}")
    if contradicted(history, calibrated, place, start):
        return silent.replace(reason="labels of recent samples contradict it: other predictions are wrong than before")
    accuracy, half = calibrated.mean(recent[:, place])
    if half > MAX_ERROR:
        return silent.replace(reason=f"its interval is ±{half:.1%}, of at most {MAX_ERROR:.0%}; it takes more samples")
    return silent.replace(accuracy=accuracy, low=max(0.0, accuracy - half), high=min(1.0, accuracy + half))


def calibration_gap(probability: Floats, right: Floats) -> float:
    """Return the expected calibration error over bins of equal size, 0 where chance explains it.

    Hosmer and Lemeshow's statistic tells (Applied Logistic Regression, 2nd ed., 2000, section 5.2.2).
    """
    from scipy.stats import chi2

    parts = [part for part in np.array_split(np.argsort(probability, kind="stable"), BINS) if len(part)]
    expected, measured = (np.array([values[part].mean() for part in parts]) for values in (probability, right))
    sizes = np.array([len(part) for part in parts])
    variances = np.maximum(np.array([(probability[part] * (1 - probability[part])).sum() for part in parts]), 1e-9)
    statistic = float(((sizes * (measured - expected)) ** 2 / variances).sum())
    if chi2.sf(statistic, max(1, len(parts) - 2)) > SIGNIFICANCE:
        return 0.0
    return float((sizes * np.abs(measured - expected)).sum() / len(right))


def distance(reference: Floats, recent: Floats) -> float:
    """Return Kolmogorov and Smirnov's distance: the largest difference of the two distribution functions, 0 to 1."""
    from scipy.stats import ks_2samp

    return float(ks_2samp(reference, recent, method="asymp").statistic)


def contradicted(history: MonitorHistory, calibrated: ConfidenceMap, place: int, start: int) -> bool:
    """Return whether labels since a sample prove the accuracy to be off the estimate by more than `MAX_ERROR`."""
    known = history.labeled >= start
    expected = 1 - calibrated(history.features[history.labeled[known], place])
    more = (1 + history.losses[known] - expected) / 2
    bound = (1 + MAX_ERROR) / 2
    return any(exceeds_wealth(side, bound).first_above(SIGNIFICANCE) is not None for side in (more, 1 - more))


def _design(confidence: Floats) -> Floats:
    """Return the log odds of confidences and ones, shape (n, 2)."""
    from scipy.special import logit

    p = np.clip(np.nan_to_num(confidence, nan=0.0, neginf=0.0), 1e-6, 1 - 1e-6)
    return np.stack([logit(p), np.ones(len(p))], axis=1)
