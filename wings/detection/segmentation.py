"""A class per pixel."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, Self

import numpy as np

from gauntlet.core.arrays import Array, Floats, NamedArrays
from gauntlet.core.frozen import Number
from gauntlet.core.signature import Preprocessing
from gauntlet.datasets.truth import IGNORED_PIXEL
from gauntlet.images.preprocessing import source_region
from gauntlet.metrics.class_scores import ClassCounts
from gauntlet.problems.base import Problem, WeightedMetric, beliefs, probabilities, ratio
from gauntlet.problems.prediction import Prediction, with_caption


class MaskPrediction(Prediction):
    """The class of each pixel, and the share of the picture that each class covers."""

    mask: tuple[tuple[int, ...], ...]
    shares: dict[str, Number]

    def lines(self) -> list[str]:
        """Return the parts of the prediction."""
        return [f"{name} {share:.1%}" for name, share in self.shares.items()]

    def on_image(self, height: int, width: int, how: Preprocessing) -> Self:
        """Return the mask of the image alone, without a letterbox's bars."""
        if how.resize != "letterbox":
            return self
        left, top, wide, high = source_region(height, width, how)
        mask = np.array(self.mask)
        classes, (rows, columns) = np.unique(mask), mask.shape
        first, last = (round((edge - top) / high * rows) for edge in (0, height))
        start, end = (round((edge - left) / wide * columns) for edge in (0, width))
        inner = mask[first:last, start:end]
        shares = {name: float(np.mean(inner == c)) for name, c in zip(self.shares, classes, strict=True)}
        present = {name: share for name, share in shares.items() if share}
        return self.replace(mask=tuple(map(tuple, inner.tolist())), shares=present)


COLORS = ((0, 0, 0), (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0))
"""Okabe and Ito's palette, which color-blind people can tell apart; class 0, mostly the background, is not drawn."""
MASK_THRESHOLD = 0.5
"""Probability from which on a pixel belongs to the only class that a single map scores."""


@dataclass(frozen=True)
class Segmentation(Problem):
    """Scores per class and pixel, a mask, or the class of each pixel; the mean intersection over union is primary."""

    metric: ClassVar[str] = "miou"

    def decode(self, outputs: NamedArrays) -> Iterator[MaskPrediction]:
        """Yield the mask of each sample."""
        masks = self.predictions(outputs[self.primary_output])
        for mask in () if masks is None else masks:
            classes, counts = np.unique(mask, return_counts=True)
            shares = {self.label(int(c)): float(n) / mask.size for c, n in zip(classes, counts, strict=True)}
            yield MaskPrediction(mask=tuple(map(tuple, mask.tolist())), shares=shares)

    def draw(self, pixels: Array, prediction: Prediction) -> Array:
        """Return the image half covered with the color of each pixel's class, and the shares below, as RGB."""
        assert isinstance(prediction, MaskPrediction)
        mask = _resized(np.array(prediction.mask)[None], pixels.shape[:2])[0]
        colors = np.array(COLORS, np.float64)[mask % len(COLORS)]
        plain = (mask == 0) | (mask == IGNORED_PIXEL)
        covered = np.where(plain[..., None], pixels, (pixels.astype(np.float64) + colors) / 2)
        return with_caption(covered.astype(np.uint8), "\n".join(prediction.lines()))

    def predictions(self, output: Array) -> Array | None:
        """Return the class of each pixel, shape (n, height, width), from scores, a mask's probability, or classes."""
        if output.dtype.kind in "iu":
            single = output.squeeze(1) if output.ndim == 4 and output.shape[1] == 1 else output
            return single if single.ndim == 3 else None
        if output.dtype.kind != "f" or output.ndim != 4:
            return None
        axis = 3 if self.signature.layout == "NHWC" else 1
        if output.shape[axis] == 1:
            return (probabilities(output.squeeze(axis), logit=self.signature.logit) >= MASK_THRESHOLD).astype(np.int64)
        return np.asarray(output.argmax(axis=axis), np.int64)

    def statistics(self, predictions: Array, truth: Array) -> Floats:
        """Return per sample and class: right, predicted and actual pixels; then all right pixels, and all."""
        predicted, expected = _resized(predictions, truth.shape[1:]), truth
        counted = expected != IGNORED_PIXEL
        highest = max(int(predicted.max(initial=0)), int(np.max(expected, where=counted, initial=0)))
        classes = range(max(len(self.signature.labels), highest + 1))
        pixels: tuple[list[Array], ...] = [], [], []
        for number in classes:
            ours, theirs = (predicted == number) & counted, (expected == number) & counted
            for counts, mask in zip(pixels, (ours & theirs, ours, theirs), strict=True):
                counts.append(mask.sum(axis=(1, 2)))
        right = ((predicted == expected) & counted).sum(axis=(1, 2))
        return np.stack([*chain.from_iterable(pixels), right, counted.sum(axis=(1, 2))], axis=1).astype(np.float64)

    def scores(self, sums: Floats) -> dict[str, Floats]:
        """Return the mean IoU over the classes that occur in truth or predictions, and the share of right pixels."""
        both, predicted, actual = np.split(sums[..., :-2], 3, axis=-1)
        either = predicted + actual - both
        occurs = either > 0
        iou = ratio(ratio(both, either).sum(axis=-1), occurs.sum(axis=-1).astype(np.float64), empty=1.0)
        return {"miou": iou, "pixel_accuracy": ratio(sums[..., -2], sums[..., -1], empty=1.0)}

    def expected_drop(self, outputs: NamedArrays, before: Array, after: Array) -> WeightedMetric:
        """Return the drop of the mean IoU by the reference's own probabilities of each pixel's classes."""
        scores, axis = outputs[self.primary_output], 3 if self.signature.layout == "NHWC" else 1
        if scores.dtype.kind != "f":
            return super().expected_drop(outputs, before, after)
        if scores.shape[axis] == 1:
            inside = probabilities(scores, logit=self.signature.logit)
            scores = np.concatenate([1 - inside, inside], axis=axis)
        if (belief := beliefs(scores, axis)) is None:
            return super().expected_drop(outputs, before, after)
        belief = np.moveaxis(belief, axis, 1)
        pixels = belief.sum(axis=(2, 3))
        first, last = (_expected_overlaps(belief, masks) for masks in (before, after))

        def drop(weights: Floats) -> Floats:
            total = weights @ pixels
            ious = []
            for shared, covered in (first, last):
                both = weights @ shared
                ious.append(ratio(both, total + weights @ covered - both, empty=1.0).mean(axis=1))
            return np.asarray(ious[0] - ious[1])

        return drop

    def differences(self, before: Array, after: Array) -> str:
        """Return the mean IoU of both masks."""
        return f"mask IoU {self.score(after, before)[self.metric]:.3f}"

    def missing_evidence(self, before: Array) -> str:
        """Return that all pixels have one class, if so."""
        classes = np.unique(before)
        return f"every pixel is {self.label(int(classes[0]))!r}" if len(classes) == 1 else ""

    def class_counts(self, predictions: Array, truth: Array) -> ClassCounts:
        """Return the pixels of each class."""
        hits, predicted, actual = np.split(self.statistics(predictions, truth)[:, :-2], 3, axis=1)
        return ClassCounts(hits, predicted, actual)

    def samples_per_class(self, truth: Array) -> list[int]:
        """Return how many masks show each class."""
        return [int((truth == number).any(axis=(1, 2)).sum()) for number in range(len(self.signature.labels))]


def _expected_overlaps(belief: Floats, masks: Array) -> tuple[Floats, Floats]:
    """Return per sample and class the expected pixels of a mask that are right, and its pixels, both (n, classes)."""
    members = [masks == number for number in range(belief.shape[1])]
    shared = [(belief[:, number] * inside).sum(axis=(1, 2)) for number, inside in enumerate(members)]
    return np.stack(shared, axis=1), np.stack([m.sum(axis=(1, 2)) for m in members], axis=1).astype(np.float64)


def _resized(masks: Array, size: tuple[int, ...]) -> Array:
    """Return masks at another size, by nearest neighbor."""
    rows, columns = (
        np.minimum((np.arange(new) + 0.5) * old // new, old - 1).astype(int)
        for new, old in zip(size, masks.shape[1:], strict=True)
    )
    return masks if masks.shape[1:] == size else masks[:, rows[:, None], columns[None, :]]
