"""One of several classes per sample."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gauntlet.core.arrays import Array, Floats, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.metrics.class_drops import ClassDrop, largest_drop
from gauntlet.metrics.confidence_calibration import class_probabilities
from gauntlet.metrics.error_metrics import predicted_classes, scores_per_class
from gauntlet.problems.base import Problem, WeightedMetric, beliefs
from gauntlet.problems.prediction import Prediction

TOP, SHOWN = 5, 3
NO_CLASS = "no class (scores are not finite)"


class ClassConfidence(Frozen):
    """One class and its probability."""

    label: str
    index: int
    confidence: Number | None = Field(description="softmax of the scores; None where the model returns classes alone")
    calibrated: Number | None = Field(
        None, description="softmax of the scores over the fitted temperature; None without one"
    )


class ClassPrediction(Prediction):
    """The most probable classes, best first."""

    top: tuple[ClassConfidence, ...]

    def lines(self) -> list[str]:
        """Return the first classes with their confidence, calibrated if it can be: `7 98.9 %`."""
        shares = [(each.label, each.confidence if each.calibrated is None else each.calibrated) for each in self.top]
        known = ((label, None if share is None or math.isnan(share) else share) for label, share in shares[:SHOWN])
        return [label if share is None else f"{label}: {100 * share:.1f} %" for label, share in known]


@dataclass(frozen=True)
class Classification(Problem):
    """A score per class, or the class itself, in the primary output; the accuracy is primary.

    The class with the highest score is predicted; one column of probabilities is of the second of two classes, which is
    predicted from over 0.5 on, or from the signature's threshold on. Its confidence is the softmax of the scores;
    scores that are not negative and sum to 1 for every sample of the call are taken for probabilities as they are.
    Softmax values are no calibrated probabilities: a confidence of 0.9 does not mean that 90 % of such predictions are
    right. With a `temperature`, fitted on held-out samples, predictions have a calibrated confidence, too.
    """

    metric: ClassVar[str] = "accuracy"
    differing: ClassVar[str] = "classes differ"
    temperature: float | None = None

    def decode(self, outputs: NamedArrays) -> Iterator[ClassPrediction]:
        """Yield one prediction per sample; the primary output has scores (n, classes), or classes (n,) or (n, 1)."""
        scores = self.class_scores(outputs[self.primary_output])
        if scores.ndim == 1 or scores.dtype.kind == "U" or (scores.shape[1:] == (1,) and scores.dtype.kind in "iu"):
            yield from self._classes(scores)
            return
        scores = scores.reshape(len(scores), -1)
        calibrated = None if self.temperature is None else class_probabilities(scores, self.temperature)
        for number, row in enumerate(class_probabilities(scores)):
            if not np.isfinite(row).all():  # none is the highest
                yield ClassPrediction(top=(ClassConfidence(label=NO_CLASS, index=-1, confidence=math.nan),))
                continue
            best = np.argsort(-row, kind="stable")[:TOP].tolist()
            if self.signature.threshold is not None:
                best = [1, 0] if row[1] >= self.signature.threshold else [0, 1]
            yield ClassPrediction(
                top=tuple(
                    ClassConfidence(
                        label=self.label(i),
                        index=i,
                        confidence=float(row[i]),
                        calibrated=None if calibrated is None else float(calibrated[number, i]),
                    )
                    for i in best
                )
            )

    def _classes(self, output: Array) -> Iterator[ClassPrediction]:
        """Yield a prediction for each class in an output; a name that is not among the labels is shown as it is."""
        classes = self.predictions(output)
        indices = output.astype(int) if classes is None else classes
        for value, index in zip(output.ravel().tolist(), indices.tolist(), strict=True):
            label = self.label(index) if index >= 0 else str(value)
            yield ClassPrediction(top=(ClassConfidence(label=label, index=index, confidence=None),))

    def predictions(self, output: Array) -> Array | None:
        """Return the class of each sample, shape (n,), or of each of its positions, shape (n, positions)."""
        if self.signature.threshold is not None:
            return np.asarray(self._positive(output) >= self.signature.threshold, np.int64)
        return predicted_classes(self.class_scores(output), self.signature.labels)

    def class_scores(self, output: Array) -> Array:
        """Return a score for each class, shape (n, classes), where the output has them or is a number of two classes.

        A logit is the difference of the second class' score and the first's. Other outputs are returned as they are.
        """
        if not self.signature.logit:
            return scores_per_class(output)
        logits = output.reshape(-1, 1)
        return np.concatenate([np.zeros_like(logits), logits], axis=1)

    def _positive(self, output: Array) -> Floats:
        """Return the probability of the second class, shape (n,); raise StageError where there are not two."""
        scores = self.class_scores(output)
        if scores.dtype.kind != "f" or scores.shape[1:] != (2,):
            raise StageError(
                f"data.threshold: {self.primary_output} is {output.dtype}{list(output.shape)}, no probability of two "
                "classes. Fix: remove it, or name the output with train.primary_output"
            )
        return class_probabilities(scores)[:, 1].astype(np.float64)

    def statistics(self, predictions: Array, truth: Array) -> Floats:
        """Return per sample: the share of its classes that are right, and 1."""
        return np.stack([(predictions == truth).reshape(len(truth), -1).mean(axis=1), np.ones(len(truth))], axis=1)

    def same(self, before: Array, after: Array) -> npt.NDArray[np.bool_]:
        """Return for which samples, or positions of them, both predict the same class; flat."""
        return np.asarray(before == after).ravel()

    def expected_drop(self, outputs: NamedArrays, before: Array, after: Array) -> WeightedMetric:
        """Return the drop of the accuracy by the reference's own probabilities of the classes that changed.

        A change from a class of 51 % to one of 49 % costs 0.02, one from 99 % to 1 % costs 0.98 (as the difference of
        confidences, Guillory et al., ICCV 2021, and NannyML's estimate). Without scores, half of the changes are lost.
        With a threshold t, a change costs 2 |p - t|: it weighs errors of the first class by t, of the second by 1 - t.
        """
        scores = self.class_scores(outputs[self.primary_output])
        belief = beliefs(scores, -1) if scores.dtype.kind == "f" and scores.ndim == before.ndim + 1 else None
        lost = 0.5 * (before != after)
        if self.signature.threshold is not None:
            distance = np.abs(self._positive(outputs[self.primary_output]) - self.signature.threshold)
            lost = 2 * distance * (before != after)
        elif belief is not None:
            lost = np.squeeze(np.diff(np.take_along_axis(belief, np.stack([after, before], -1), -1)), -1)
        each = lost.reshape(len(lost), -1).mean(axis=1)
        return lambda weights: weights @ each / weights.sum(axis=1)

    def missing_evidence(self, before: Array) -> str:
        """Return that only one class is predicted, if so."""
        classes = np.unique(before)
        return f"the only class predicted is {self.label(int(classes[0]))!r}" if len(classes) == 1 else ""

    def scores(self, sums: Floats) -> dict[str, Floats]:
        """Return the accuracy."""
        return {"accuracy": sums[..., 0] / sums[..., 1]}

    def largest_class_drop(self, before: Array, after: Array, truth: Array | None = None) -> ClassDrop | None:
        """Return in which class a candidate loses most; None for classes of positions, which depend on each other."""
        return largest_drop(before, after, self.signature.labels, truth) if before.ndim == 1 else None

    def class_probabilities(self, output: Array) -> Floats | None:
        """Return the softmax of the scores."""
        scores = self.class_scores(output)
        if scores.ndim != 2:
            return None
        values = class_probabilities(scores).astype(np.float64)
        return values[:, 1:] if values.shape[1] == 2 else values

    def membership(self, truth: Array, classes: int) -> Floats:
        """Return the truth as one column per class."""
        return np.asarray(truth[:, None] == np.arange(max(2, classes))[-classes:], np.float64)

    def samples_per_class(self, truth: Array) -> list[int]:
        """Return how many samples have each class."""
        return [int(count) for count in np.bincount(truth, minlength=len(self.signature.labels))]
