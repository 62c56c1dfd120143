"""Base class of problems: what a model's outputs mean, and how good they are."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.signature import Signature
from gauntlet.problems.caption import with_caption
from gauntlet.problems.prediction import Prediction

if TYPE_CHECKING:
    from gauntlet.metrics.paired_accuracy import LossVerdict  # loads SciPy, which predictions do not need

CHUNK_VALUES = 10_000_000

Floats = npt.NDArray[np.float64]
WeightedMetric = Callable[[Floats], Floats]
"""From weights of the samples, shape (r, n), to a metric for each row."""


class MetricLoss(Frozen):
    """What a model loses of the primary metric against its reference, on the same samples."""

    metric: str
    samples: int
    before: Number = Field(description="the metric of the reference: the FP32 model, or the champion")
    after: Number
    drop: Number = Field(description="before - after")
    drop_low: Number = Field(description="lower end of the 95 % interval of the drop")
    drop_high: Number

    def verdict(self, allowed_drop: float) -> "LossVerdict":
        """Return whether the candidate is proven to lose no more than allowed, proven to lose more, or neither."""
        if self.drop_high <= allowed_drop:
            return "proven good"
        return "proven bad" if self.drop_low > allowed_drop else "not resolved"


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
    resamples: ClassVar[int] = 2000
    """Of the bootstrap."""

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

    def agreement(self, before: Array, after: Array) -> float:
        """Return the primary metric of predictions, with those of the FP32 model in place of the truth."""
        return self.score(after, before)[self.metric]

    def same(self, before: Array, after: Array) -> npt.NDArray[np.bool_] | None:
        """Return for which samples two models predict the same; None where predictions agree by degrees."""
        return None

    def disagreement(self, before: Array, after: Array) -> MetricLoss:
        """Return what is lost where the predictions of the reference are the truth, with its 95 % interval."""
        return self.loss(before, after, before)

    def loss(self, before: Array, after: Array, truth: Array, *, seed: int = 0) -> MetricLoss:
        """Return the drop of the primary metric between two sets of predictions, with its 95 % interval.

        Percentile bootstrap over samples, paired (Efron and Tibshirani, An Introduction to the Bootstrap, 1993).
        """
        metrics = self.weighted_metric(before, truth), self.weighted_metric(after, truth)
        return self._resampled(self.metric, metrics, len(truth), seed)

    def _resampled(
        self, name: str, metrics: tuple[WeightedMetric, WeightedMetric], samples: int, seed: int
    ) -> MetricLoss:
        """Return the drop from the first to the second metric, each computed from weights of the samples."""
        first, last = (float(metric(np.ones((1, samples)))[0]) for metric in metrics)
        weights = self._drawn(samples, np.random.default_rng(seed))
        drops = np.concatenate([metrics[0](drawn) - metrics[1](drawn) for drawn in weights])
        low, high = np.percentile(drops, [2.5, 97.5])
        return MetricLoss(
            metric=name,
            samples=samples,
            before=first,
            after=last,
            drop=first - last,
            drop_low=float(low),
            drop_high=float(high),
        )

    def _drawn(self, samples: int, rng: np.random.Generator) -> Iterator[Floats]:
        """Yield how often each sample is drawn, a chunk of resamples at a time, shape (r, n)."""
        chunk = max(1, min(self.resamples, CHUNK_VALUES // samples))
        for start in range(0, self.resamples, chunk):
            size = min(chunk, self.resamples - start)
            yield rng.multinomial(samples, np.full(samples, 1 / samples), size).astype(np.float64)

    def samples_per_class(self, truth: Array) -> list[int] | None:
        """Return how many samples have each class, in the order of the labels; None where there are no classes."""
        return None


def ratio(numerator: Floats, denominator: Floats, empty: float = 0.0) -> Floats:
    """Return the quotient; `empty` where the denominator is 0."""
    return np.asarray(
        np.divide(numerator, denominator, out=np.full(np.shape(numerator), empty), where=denominator != 0)
    )


def probabilities(scores: Array) -> Floats:
    """Return scores as independent probabilities: as they are if all are within 0 and 1, else their sigmoid."""
    values = scores.astype(np.float64)
    within = not values.size or (values.min() >= 0 and values.max() <= 1)
    return values if within else np.asarray(0.5 * (1 + np.tanh(values / 2)))
