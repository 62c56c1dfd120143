"""Base class of problems: what a model's outputs mean, and how good they are."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy.special import expit, softmax

from gauntlet.core.arrays import Array, Floats, NamedArrays
from gauntlet.core.signature import Signature
from gauntlet.metrics.class_drops import ClassDrop, largest_change, largest_counted_drop, mean_change
from gauntlet.metrics.class_scores import ClassCounts, label_of
from gauntlet.metrics.error_metrics import within_unit
from gauntlet.metrics.paired_accuracy import PairedChange
from gauntlet.metrics.ranking_drop import ranking_drop
from gauntlet.problems.prediction import Prediction, with_caption

CHUNK_VALUES = 10_000_000
MIN_CONFIDENCE = 0.5
LEAST_SKILL = 0.1
"""Of what chance lacks of a perfect score, as Cohen's kappa counts it: what labels must show to judge a loss."""
LOST_SHARE = 0.6
"""Of what a reference expects to lose by its own probabilities, the share that is really lost: networks are too sure of
themselves, and what a reference gets wrong cannot be lost. Measured on twelve problems (`benchmarks/wrong_passes`)."""

WeightedMetric = Callable[[Floats], Floats]
"""From weights of the samples, shape (r, n), to a metric for each row."""


@dataclass(frozen=True)
class Problem(ABC):
    """A kind of problem: how to read outputs, and how to score them.

    Predictions and truth are arrays whose first axis is the samples. The metrics of most problems are computed from
    `statistics` that add up over samples, so that a bootstrap over samples costs one matrix product; another problem
    has its own `score` and `weighted_metric`.
    """

    signature: Signature
    metric: ClassVar[str]
    """Name of the primary metric: larger is better, 1 is perfect."""
    differing: ClassVar[str] = "predictions differ"
    """What those of a candidate are that differ from the reference's."""
    agreement_metric: ClassVar[str] = ""
    """Name of what `agreement` returns, where it is not the primary metric."""
    resamples: ClassVar[int] = 2000
    """Of the bootstrap."""
    chance_samples: ClassVar[int] = 500
    """Most samples that a comparison with chance scores, 20 times."""

    @property
    def primary_output(self) -> str:
        """The output that is the prediction."""
        return self.signature.primary_output or self.signature.outputs[0].name

    @abstractmethod
    def decode(self, outputs: NamedArrays) -> Iterator[Prediction]:
        """Yield one prediction per sample; outputs have shape (n, ...)."""

    def draw(self, pixels: Array, prediction: Prediction) -> Array:
        """Return the image, shape (height, width, channels), with the prediction below, as RGB."""
        return with_caption(pixels, "\n".join(prediction.lines()))

    @property
    def can_be_drawn(self) -> bool:
        """Whether the model takes one image, so that predictions can be drawn on it."""
        how, inputs = self.signature.preprocessing, self.signature.inputs
        return how is not None and how.hog is None and len(inputs) == 1 and self.signature.layout != "none"

    def shown(self, predictions: Array) -> Iterator[Prediction]:
        """Yield what people see of predictions, or of the truth, shape (n, ...)."""
        return self.decode({self.primary_output: predictions})

    @abstractmethod
    def predictions(self, output: Array) -> Array | None:
        """Return predictions that compare with the truth, shape (n, ...); None if the output cannot be one."""

    def predictions_of(self, outputs: NamedArrays) -> Array | None:
        """Return predictions from all outputs, by name; those of the primary one, unless a problem reads several."""
        return self.predictions(outputs[self.signature.primary_output or next(iter(outputs))])

    def statistics(self, predictions: Array, truth: Array) -> Floats:
        """Return statistics of each sample, shape (n, k), that add up over samples."""
        raise NotImplementedError

    def scores(self, sums: Floats) -> dict[str, Floats]:
        """Return metrics by name, the primary one first, from sums of statistics, shape (..., k)."""
        raise NotImplementedError

    def weighted_metric(self, predictions: Array, truth: Array) -> WeightedMetric:
        """Return the function from weights of the samples, shape (r, n), to the primary metric for each row."""
        statistics = self.statistics(predictions, truth)
        return lambda weights: self.scores(weights @ statistics)[self.metric]

    def score(self, predictions: Array, truth: Array) -> dict[str, float]:
        """Return the metrics of predictions, the primary one first."""
        sums = self.statistics(predictions, truth).sum(axis=0)
        return {name: float(value) for name, value in self.scores(sums).items()}

    def sample_scores(self, predictions: Array, truth: Array) -> Floats:
        """Return the primary metric of each sample alone, shape (n,)."""
        return self.scores(self.statistics(predictions, truth))[self.metric]

    @property
    def outputs_read(self) -> tuple[str, ...]:
        """The outputs that predictions are made from; all others are compared value by value."""
        return (self.primary_output,)

    def same(self, before: Array, after: Array) -> npt.NDArray[np.bool_] | None:
        """Return for which samples two models predict the same; None where predictions agree by degrees."""
        return None

    def agreement(self, before: Array, after: Array) -> WeightedMetric:
        """Return the primary metric of a candidate's predictions where those of the reference are the truth."""
        return self.weighted_metric(after, before)

    def kept(self, before: Array, after: Array) -> float | None:
        """Return which share of the objects that a reference shows a candidate shows, too; None where there are none.

        People count them, whatever they are worth to the metric.
        """
        return None

    def as_truth(self, predictions: Array) -> Array:
        """Return the predictions of a reference as the truth that a candidate's are counted against."""
        return predictions

    def disagreement(self, before: Array, after: Array) -> PairedChange:
        """Return what is lost where the predictions of the reference are the truth, with its 95 % interval."""
        metrics = (lambda weights: np.ones(len(weights)), self.agreement(before, after))
        return self._resampled(self.agreement_metric or self.metric, metrics, len(before), seed=0).widened()

    def expected_loss(self, outputs: NamedArrays, before: Array, after: Array) -> PairedChange:
        """Return what a candidate is expected to lose where nobody knows the truth, with its 95 % interval.

        `outputs` are the reference's, from which the predictions `before` were read. The metric of the reference counts
        as 1.
        """
        drop = self.expected_drop(outputs, before, after)
        metrics = (lambda weights: np.ones(len(weights)), lambda weights: 1 - LOST_SHARE * drop(weights))
        return self._resampled(self.metric, metrics, len(before), seed=0).widened()

    def expected_drop(self, outputs: NamedArrays, before: Array, after: Array) -> WeightedMetric:
        """Return the drop of the primary metric by what the reference believes: half of what does not agree.

        A prediction that changed may as well have become right. Problems with probabilities know better.
        """
        agreement = self.agreement(before, after)
        return lambda weights: (1 - agreement(weights)) / 2

    def differences(self, before: Array, after: Array) -> str:
        """Return for people how a candidate's predictions differ from the reference's."""
        same = self.same(before, after)
        return "" if same is None else f"{int((~same).sum())} of {len(same)} {self.differing}"

    def missing_evidence(self, before: Array) -> str:
        """Return why the reference's predictions show nothing that a candidate could lose; empty where they do."""
        return "every prediction is the same" if len(before) and not (before != before[:1]).any() else ""

    def beats_chance(self, predictions: Array, truth: Array, *, seed: int = 0) -> bool:
        """Return whether predictions fit the truth clearly better than its samples in every one of 19 random orders.

        Better at all is 5 % of the cases by chance (a permutation test: Good, Permutation Tests, 2000). `LEAST_SKILL`
        asks for more: labels in another unit correlate, too, but nothing is lost on them that a model could lose.
        """
        rng, count = np.random.default_rng(seed), min(len(truth), self.chance_samples)
        chosen = rng.choice(len(truth), count, replace=False)
        predicted, expected = predictions[chosen], truth[chosen]
        scores = [self.score(predicted, rng.permutation(expected))[self.metric] for _ in range(19)]
        chance = max(0.0, *scores)
        return self.score(predicted, expected)[self.metric] > chance + LEAST_SKILL * (1 - chance)

    def loss(self, before: Array, after: Array, truth: Array, *, seed: int = 0) -> PairedChange:
        """Return the drop of the primary metric between two sets of predictions, with its 95 % interval.

        Percentile bootstrap over samples, paired (Efron and Tibshirani, An Introduction to the Bootstrap, 1993).
        """
        metrics = self.weighted_metric(before, truth), self.weighted_metric(after, truth)
        return self._resampled(self.metric, metrics, len(truth), seed)

    def _resampled(
        self, name: str, metrics: tuple[WeightedMetric, WeightedMetric], samples: int, seed: int
    ) -> PairedChange:
        """Return the drop from the first to the second metric, each computed from weights of the samples."""
        first, last = (float(metric(np.ones((1, samples)))[0]) for metric in metrics)
        rng, chunk = np.random.default_rng(seed), max(1, min(self.resamples, CHUNK_VALUES // samples))
        sizes = (min(chunk, self.resamples - start) for start in range(0, self.resamples, chunk))
        each = np.full(samples, 1 / samples)  # drawn a chunk of resamples at a time, shape (r, n)
        weights = (rng.multinomial(samples, each, size).astype(np.float64) for size in sizes)
        drops = np.concatenate([metrics[0](drawn) - metrics[1](drawn) for drawn in weights])
        low, high = np.percentile(drops, [2.5, 97.5])
        return PairedChange(
            metric=name, n=samples, before=first, after=last, drop=first - last, low=float(low), high=float(high)
        )

    def label(self, index: int) -> str:
        """Return the name of a class, or its number where it has none."""
        return label_of(self.signature.labels, index)

    def largest_class_drop(self, before: Array, after: Array, truth: Array | None = None) -> ClassDrop | None:
        """Return in which class a candidate loses most against a reference; None where there are no classes."""
        last = self.class_counts(after, self.as_truth(before) if truth is None else truth)
        if last is None:
            return None
        first = None if truth is None else self.class_counts(before, truth)
        labels = self.signature.labels
        return largest_change(last, labels) if first is None else largest_counted_drop(first, last, labels)

    def lost_ranking(self, expected: Array, actual: Array, truth: Array | None = None) -> PairedChange | None:
        """Return what a candidate loses of the ranking by class; None where the primary output has no such scores.

        Without the truth, the reference's own probabilities stand for it. Of very many scores, an evenly spaced part of
        the samples is ranked.
        """
        before, after = self._class_probabilities_of_both(expected, actual)
        if before is None or after is None:
            return None
        if truth is not None:
            return ranking_drop(before, after, self.membership(truth[:: _step(expected)], before.shape[1]))
        if (change := ranking_drop(before, after, before)) is None:
            return None
        lost = {name: LOST_SHARE * getattr(change, name) for name in ("drop", "low", "high")}
        return change.replace(**lost, after=change.before - lost["drop"])

    def mean_change(self, expected: Array, actual: Array) -> ClassDrop | None:
        """Return how much more or less certain a candidate is, on which users act; None where nothing tells that.

        That is the probability of the most probable one of exclusive classes, and the mean of the more probable answer
        of classes that are not.
        """
        before, after = self._class_probabilities_of_both(expected, actual)
        if before is None or after is None:
            return None
        exclusive = before.shape[1] > 1 and np.allclose(before.sum(axis=1), 1, atol=0.01)
        first, last = (p.max(axis=1) if exclusive else np.maximum(p, 1 - p).mean(axis=1) for p in (before, after))
        return mean_change("confidence", first, last)

    def _class_probabilities_of_both(self, *outputs: Array) -> list[Floats | None]:
        if outputs[0].dtype.kind != "f" or not all(np.isfinite(output).all() for output in outputs):
            return [None, None]
        return [self.class_probabilities(output[:: _step(outputs[0])]) for output in outputs]

    def class_probabilities(self, output: Array) -> Floats | None:
        """Return the probability of each class, of two classes that of the second, shape (n, classes); None without."""
        return None

    def membership(self, truth: Array, classes: int) -> Floats:
        """Return whether each sample is of each class that has a probability, 0 or 1, shape (n, classes)."""
        raise NotImplementedError

    def class_counts(self, predictions: Array, truth: Array) -> ClassCounts | None:
        """Return what each sample has of each class; None where there are no classes, or only one per sample."""
        return None

    def samples_per_class(self, truth: Array) -> list[int] | None:
        """Return how many samples have each class, in the order of the labels; None where there are no classes."""
        return None


def _step(output: Array) -> int:
    """Return which part of the samples is judged: every one, or every second, third ... of very large outputs."""
    return 1 + output.size // CHUNK_VALUES


def beliefs(scores: Array, axis: int) -> Floats | None:
    """Return scores as probabilities of exclusive classes along an axis; None where they are none, or tell little.

    Scores that are not negative and sum to 1 are taken as they are, others through a softmax. Where the most probable
    class has less than one half on average, the model does not know these samples: its probabilities excuse everything.
    """
    values = scores.astype(np.float64)
    if values.shape[axis] < 2 or not np.isfinite(values).all():
        return None
    if values.min(initial=0) < 0 or not np.allclose(values.sum(axis=axis), 1, atol=0.01):
        values = softmax(values, axis=axis)
    return values if values.max(axis=axis).mean() >= MIN_CONFIDENCE else None


def ratio(numerator: Floats, denominator: Floats, empty: float = 0.0) -> Floats:
    """Return the quotient; `empty` where the denominator is 0."""
    out = np.full(np.shape(numerator), empty)
    return np.asarray(np.divide(numerator, denominator, out=out, where=denominator != 0))


def probabilities(scores: Array, *, logit: bool = False) -> Floats:
    """Return scores as independent probabilities: logits, and what is beyond 0 and 1 by more than rounding, by sigmoid.

    `logit` is the signature's: the scores of a single call may be within 0 and 1 by chance.
    """
    values = scores.astype(np.float64)
    return np.asarray(expit(values) if logit or not within_unit(values[~np.isnan(values)]) else values.clip(0, 1))
