"""Streams of requests to a classifier of digits that change at a known time: corruptions, label shift, concept drift.

The population is scikit-learn's digits that the classifier did not learn from; reference and streams are drawn from it
with replacement, so an undisturbed stream has exactly the distribution of its reference.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import numpy.typing as npt
from scipy import ndimage
from scipy.signal import lfilter
from scipy.special import ndtr

from gauntlet.core.signature import Preprocessing, Signature, TensorSpec
from gauntlet.request_log.input_statistics import input_statistics
from wings.lifecycle.library.monitoring.features import PREDICTED, feature_names, output_features
from wings.lifecycle.library.monitoring.judgment import gather
from wings.lifecycle.library.monitoring.monitor_history import MonitorHistory
from wings.lifecycle.library.monitoring.monitor_result import MonitorLimits
from wings.lifecycle.library.monitoring.reference import MonitoringReference

Floats = npt.NDArray[np.float64]
Images = npt.NDArray[np.float32]
CLASSES, SIZE = 10, 8
SIGNATURE = Signature(
    inputs=(TensorSpec(name="image", dtype="float32", shape=("n", 1, SIZE, SIZE)),),
    outputs=(TensorSpec(name="scores", dtype="float32", shape=("n", CLASSES)),),
    preprocessing=Preprocessing(height=SIZE, width=SIZE, scale=1 / 16, mean=(0.0,), std=(1.0,)),
    labels=tuple(map(str, range(CLASSES))),
)
NAMES = feature_names(SIGNATURE)
LIMITS = MonitorLimits(season_h=0)
PER_DAY = 1_000
Places = npt.NDArray[np.int64]
Draws = Callable[[np.random.Generator, int], Places]
"""Takes a source of noise and a count; returns samples of the population."""
Corruption = Callable[[Images, int, np.random.Generator], npt.NDArray[np.floating]]
"""Takes images of shape (n, 8, 8), 0 to 1, a severity, and a source of noise."""


def _shifted(images: Images, severity: int, _: np.random.Generator) -> npt.NDArray[np.floating]:
    return ndimage.shift(images, (0, 0, 0.3 * severity), order=1)


def _occluded(images: Images, severity: int, random: np.random.Generator) -> npt.NDArray[np.floating]:
    changed = images.copy()
    for image, row in zip(changed, random.integers(0, SIZE - severity + 1, len(images)), strict=True):
        image[row : row + severity, :severity] = 0
    return changed


def _salted(images: Images, severity: int, random: np.random.Generator) -> npt.NDArray[np.floating]:
    hit = random.random(images.shape) < 0.02 * severity
    return np.where(hit, random.integers(0, 2, images.shape), images)


CORRUPTIONS: Mapping[str, Corruption] = {
    "noise": lambda images, severity, random: images + random.normal(0, 0.05 * severity, images.shape),
    "salt and pepper": _salted,
    "blur": lambda images, severity, _: ndimage.gaussian_filter(images, (0, 0.2 * severity, 0.2 * severity)),
    "brightness": lambda images, severity, _: images + 0.04 * severity,
    "contrast": lambda images, severity, _: 0.3 + (images - 0.3) * (1 - 0.12 * severity),
    "rotation": lambda images, severity, _: ndimage.rotate(images, 9 * severity, axes=(1, 2), reshape=False, order=1),
    "shift": _shifted,
    "occlusion": _occluded,
}


@dataclass(frozen=True)
class Population:
    """Samples to draw from."""

    features: Floats
    """Shape (samples, features)."""
    truth: npt.NDArray[np.int64]

    @property
    def wrong(self) -> npt.NDArray[np.bool_]:
        """Which of the samples are predicted wrong."""
        return np.asarray(self.features[:, NAMES.index(PREDICTED)] != self.truth)


@dataclass(frozen=True)
class Stream:
    """A reference, and what is asked after it; the change is before the sample `changed`."""

    reference: MonitoringReference
    history: MonitorHistory
    changed: int


@cache
def _classifier_and_images() -> tuple[object, Images, npt.NDArray[np.int64]]:
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images, truth = (digits.images / 16).astype(np.float32), digits.target.astype(np.int64)
    learned, held, learned_truth, held_truth = train_test_split(images, truth, test_size=0.5, random_state=0)
    network = LogisticRegression(max_iter=2000).fit(learned.reshape(len(learned), -1), learned_truth)
    return network, held, held_truth


@cache
def population(corruption: str = "", severity: int = 0) -> Population:
    """Return the held-out digits as they are, or corrupted."""
    network, images, truth = _classifier_and_images()
    if corruption:
        random = np.random.default_rng(severity)
        images = np.clip(CORRUPTIONS[corruption](images, severity, random), 0, 1).astype(np.float32)
    scores = network.predict_log_proba(images.reshape(len(images), -1))  # type: ignore[attr-defined]
    features = np.concatenate(
        [input_statistics({"image": images[:, None]}, SIGNATURE), output_features({"scores": scores}, SIGNATURE)],
        axis=1,
    )
    return Population(features, truth)


def _places(by: str, shares: Floats) -> Places:
    """Return samples of the population by their share, 0 to 1, of the order of a feature."""
    order = np.argsort(population().features[:, NAMES.index(by)], kind="stable")
    return np.asarray(order[(shares * len(order)).astype(int)])


def independent(random: np.random.Generator, count: int) -> Places:
    """Draw with replacement."""
    return random.integers(0, len(population().truth), count)


def autoregressive(random: np.random.Generator, count: int, coefficient: float) -> Places:
    """Draw images whose brightness is like that of the one before."""
    noise = random.normal(0, np.sqrt(1 - coefficient**2), count)
    return _places("brightness", ndtr(lfilter([1.0], [1.0, -coefficient], noise)))


def groups(random: np.random.Generator, count: int) -> Places:
    """Draw images whose brightness has a correlation of 0.3 among eight in a row."""
    shared = np.repeat(random.normal(size=-(-count // 8)), 8)[:count]
    return _places("brightness", ndtr(np.sqrt(0.3) * shared + np.sqrt(0.7) * random.normal(size=count)))


def bursts(random: np.random.Generator, count: int) -> Places:
    """Draw users who each send four images of one class in a row."""
    users = np.repeat(random.integers(0, CLASSES, -(-count // 4)), 4)[:count]
    return _places(PREDICTED, (users + random.random(count)) / CLASSES)


def daily(random: np.random.Generator, count: int) -> Places:
    """Draw images whose brightness follows the hour, by half a standard deviation, 1,000 a day."""
    hours = np.sin(2 * np.pi * np.arange(count) / PER_DAY)
    return _places("brightness", ndtr((0.5 * hours + random.normal(size=count)) / np.sqrt(1 + 0.5**2 / 2)))


DRAWS: Mapping[str, Draws] = {
    "independent": independent,
    "autoregressive, coefficient 0.3": partial(autoregressive, coefficient=0.3),
    "autoregressive, coefficient 0.6": partial(autoregressive, coefficient=0.6),
    "groups of eight, correlation 0.3": groups,
    "four of one class in a row": bursts,
    "daily cycle of half a deviation": daily,
}


def stream(
    seed: int,
    samples: int,
    *,
    changed: int | None = None,
    after: Population | None = None,
    weights: Floats | None = None,
    reference: int = 500,
    labeled: float = 0.0,
    draws: Draws = independent,
) -> Stream:
    """Draw a reference and a stream that comes from another population, or with other weights, after a change.

    `labeled` is the share of samples whose label arrives, `draws` how samples follow each other before the change.
    """
    random, before = np.random.default_rng(seed), population()
    after, changed = after or before, samples if changed is None else changed
    known = draws(random, reference)
    first = draws(random, changed)
    rest = random.choice(len(after.truth), samples - changed, p=weights)
    features = np.concatenate([before.features[first], after.features[rest]])
    wrong = np.concatenate([before.wrong[first], after.wrong[rest]])
    chosen = np.flatnonzero(random.random(samples) < labeled)
    history = replace(
        MonitorHistory.empty(len(NAMES)),
        features=features,
        times=np.arange(samples, dtype=np.float64),
        ids=np.arange(samples).astype(np.bytes_),
        places=np.stack([np.ones(samples, int), np.arange(1, samples + 1), np.zeros(samples, int)], axis=1),
        broken=np.zeros(samples),
        losses=wrong[chosen].astype(np.float64),
        labeled=chosen,
    )
    return Stream(MonitoringReference(NAMES, before.features[known], before.wrong[known]), history, changed)


def label_shift(severity: int) -> Floats:
    """Return weights with which two of the classes become so much more frequent."""
    weights = np.where(np.isin(population().truth, (3, 8)), 1.0 + severity, 1.0)
    return weights / weights.sum()


def concept_drift(severity: int) -> Population:
    """Return the same images with other labels: a share of the samples has the next class."""
    usual = population()
    changed = np.random.default_rng(severity).random(len(usual.truth)) < 0.08 * severity
    return Population(usual.features, np.where(changed, (usual.truth + 1) % CLASSES, usual.truth))


def alarm_of(case: Stream, limits: MonitorLimits = LIMITS) -> int | None:
    """Return the sample or label of the first alarm of any of the monitor's tests; None where there is none."""
    evidence = gather(case.history, case.reference, limits)
    alarms = [wealth.first_above(evidence.level) for wealth in evidence.features if wealth is not None]
    if evidence.risk is not None:
        label = evidence.risk.first_above(evidence.risk_level)
        alarms.append(None if label is None else int(case.history.labeled[label]))
    return min((alarm for alarm in alarms if alarm is not None), default=None)
