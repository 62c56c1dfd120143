"""Boxes with a class, any number per image."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont
from pydantic import Field

from gauntlet.core.arrays import Array, Floats, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.signature import Preprocessing
from gauntlet.images.preprocessing import source_region
from gauntlet.metrics.class_scores import ClassCounts
from gauntlet.problems.base import Problem, WeightedMetric, ratio
from gauntlet.problems.prediction import Prediction, enlarged, with_caption
from wings.detection.average_precision import average_precisions, coco_scores, match_detections, mean_average_precision
from wings.detection.box_decoding import decode_boxes, has_form
from wings.detection.segmentation import COLORS

LABEL_SIZE = 15
"""Pixels; of the text at a drawn box."""
BOX_ERROR = 0.5
"""What a detector typically lacks of a perfect mAP: the best on COCO have about 0.5."""
MAX_SCORE_CHANGE = 0.25
"""Of a detection that is kept: what was certain and is doubtful now is lost to whoever shows the certain ones alone."""
LARGEST_SIZE = (1 << 16, 1 << 16)
"""Of an input whose size is open: boxes in pixels are not cut at its edges."""


class Box(Frozen):
    """One detected object."""

    label: str
    index: int
    score: Number
    left: float = Field(description="edges in pixels")
    top: float
    right: float
    bottom: float

    @property
    def edges(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom."""
        return self.left, self.top, self.right, self.bottom


class BoxesPrediction(Prediction):
    """The detected objects, best score first."""

    boxes: tuple[Box, ...]

    def lines(self) -> list[str]:
        """Return one line for each object."""
        return [f"{b.label} {b.score:.0%} at {' '.join(f'{edge:.0f}' for edge in b.edges)}" for b in self.boxes] or [
            "nothing"
        ]

    def on_image(self, height: int, width: int, how: Preprocessing) -> Self:
        """Return the same boxes in the pixels of the image that the input was made from, cut at its edges."""
        left, top, wide, high = source_region(height, width, how)
        across, down = wide / how.width, high / how.height
        return self.replace(
            boxes=tuple(
                box.replace(
                    left=min(max(left + box.left * across, 0.0), width),
                    top=min(max(top + box.top * down, 0.0), height),
                    right=min(max(left + box.right * across, 0.0), width),
                    bottom=min(max(top + box.bottom * down, 0.0), height),
                )
                for box in self.boxes
            )
        )


@dataclass(frozen=True)
class Detection(Problem):
    """Boxes with a class and a score, read from the outputs as `signature.decode` says; mAP@[.5:.95] is primary.

    Predictions and truth have shape (n, k, 6): left, top, right and bottom edge in pixels of the input, class (-1: no
    box), and the score, or for an object of the truth 1, and 0 if it does not count (a crowd, a difficult object).
    """

    metric: ClassVar[str] = "map"
    agreement_metric: ClassVar[str] = "detections kept"
    resamples: ClassVar[int] = 1000
    chance_samples: ClassVar[int] = 40

    def decode(self, outputs: NamedArrays) -> Iterator[BoxesPrediction]:
        """Yield the boxes of each sample whose score is at least `decode.shown_score`."""
        detections = self.predictions_of(outputs)
        return iter(()) if detections is None else self.shown(detections)

    def shown(self, predictions: Array) -> Iterator[BoxesPrediction]:
        """Yield the boxes of predictions or of the truth, shape (n, k, 6), with at least `decode.shown_score`."""
        least = self.signature.decode.shown_score if self.signature.decode else 0
        for rows in predictions.astype(float).tolist():
            yield BoxesPrediction(boxes=tuple(self._box(*row) for row in rows if row[4] >= 0 and row[5] >= least))

    def _box(self, left: float, top: float, right: float, bottom: float, label: float, score: float) -> Box:
        index = int(label)
        name = self.signature.labels[index] if index < len(self.signature.labels) else str(index)
        return Box(label=name, index=index, score=score, left=left, top=top, right=right, bottom=bottom)

    def draw(self, pixels: Array, prediction: Prediction) -> Array:
        """Return the image, enlarged if it is small, with the boxes and their labels, as RGB."""
        assert isinstance(prediction, BoxesPrediction)
        image, factor = enlarged(pixels)
        canvas = Image.fromarray(image)
        pen, font = ImageDraw.Draw(canvas), ImageFont.load_default(LABEL_SIZE)
        for box in reversed(prediction.boxes):  # the best on top
            color = COLORS[1 + box.index % (len(COLORS) - 1)]
            left, top, right, bottom = (round(edge * factor) for edge in box.edges)
            pen.rectangle((left, top, right, bottom), outline=color, width=2)
            place = (left, top - LABEL_SIZE - 4 if top > LABEL_SIZE + 4 else top + 1)  # above the box if there is room
            pen.text(place, f"{box.label} {box.score:.0%}", color, font, stroke_width=1, stroke_fill=(0, 0, 0))
        count = len(prediction.boxes)
        return with_caption(np.asarray(canvas), f"{count} object{'s' * (count != 1)}")

    def predictions(self, output: Array) -> None:
        """Return None: boxes are read from outputs by their names; see `predictions_of`."""
        return

    def predictions_of(self, outputs: NamedArrays) -> Array | None:
        """Return the detections, shape (n, k, 6); None where the signature does not say how to read them.

        Raises:
            StageError: when the outputs do not have the form that it names.
        """
        how = self.signature.decode
        if how is None:
            return None
        if wrong := has_form(how, outputs, len(self.signature.labels)):
            raise StageError(f"{wrong}. Fix: correct data.decode, or the number of classes")
        return decode_boxes(how, outputs, self._input_size())

    def _input_size(self) -> tuple[int, int]:
        """Return height and width of an input."""
        how, shape = self.signature.preprocessing, self.signature.inputs[0].shape
        if how is not None:
            return how.height, how.width
        height, width = shape[1:3] if self.signature.layout == "NHWC" else shape[-2:]
        if isinstance(height, str) or isinstance(width, str):
            if self.signature.decode is not None and self.signature.decode.in_pixels:
                return LARGEST_SIZE
            raise StageError(
                f"boxes need the size of the input, which is {list(shape)}. Fix: export it with a fixed size"
            )
        return height, width

    def score(self, predictions: Array, truth: Array) -> dict[str, float]:
        """Return mAP@[.5:.95] and mAP@.5, as COCO defines them."""
        return coco_scores(predictions, truth)

    def weighted_metric(self, predictions: Array, truth: Array) -> Callable[[Floats], Floats]:
        """Return the function from weights of the images, shape (r, n), to the mAP@[.5:.95] for each row."""
        matches = match_detections(predictions, truth)
        return lambda weights: mean_average_precision(matches, weights)

    def sample_scores(self, predictions: Array, truth: Array) -> Floats:
        """Return the mAP@[.5:.95] of each image alone, shape (n,)."""
        weight, pairs = np.ones((1, 1)), zip(predictions, truth, strict=True)
        return np.array([mean_average_precision(match_detections(p[None], t[None]), weight)[0] for p, t in pairs])

    @property
    def outputs_read(self) -> tuple[str, ...]:
        """The outputs that hold boxes, scores and classes."""
        return self.signature.decode.outputs if self.signature.decode else ()

    def agreement(self, before: Array, after: Array) -> WeightedMetric:
        """Return the share of the shown detections that are kept, or of those that are not new, whichever is less."""
        kept, total, now = self._kept(before, after)
        return lambda w: np.minimum(ratio(w @ kept, w @ total, empty=1.0), ratio(w @ kept, w @ now, empty=1.0))

    def kept(self, before: Array, after: Array) -> float:
        """Return the share of the shown detections that are kept, by the counts of `differences`."""
        kept, total, _ = (float(counts.sum()) for counts in self._kept(before, after))
        return kept / total if total else 1.0

    def expected_drop(self, outputs: NamedArrays, before: Array, after: Array) -> WeightedMetric:
        """Return the expected drop of the mAP from the candidate's mAP where the reference's boxes are the truth.

        An object that is lost or new at an IoU of 0.5 was right in half of the cases. A box that only moved adds its
        error to that of the reference's own box, as independent errors add: in quadrature.
        """
        matches = match_detections(after, self.as_truth(before))
        loosest = [each.at_loosest() for each in matches]

        def drop(weights: Floats) -> Floats:
            if not matches:  # nothing is shown
                return np.zeros(len(weights))
            objects, boxes = (mean_average_precision(part, weights) for part in (loosest, matches))
            return np.asarray((1 - objects) / 2 + np.hypot(BOX_ERROR, objects - boxes) - BOX_ERROR)

        return drop

    def same(self, before: Array, after: Array) -> npt.NDArray[np.bool_]:
        """Return for which samples both show the same objects, by the counts of `differences`."""
        kept, total, now = self._kept(before, after)
        return np.asarray((total == now) & (kept == total))

    def differences(self, before: Array, after: Array) -> str:
        """Return how many of the shown detections are kept, and how many are new."""
        kept, total, now = (int(counts.sum()) for counts in self._kept(before, after))
        return f"keeps {kept} of {total} detections, {now - kept} new"

    def missing_evidence(self, before: Array) -> str:
        """Return that nothing is detected, if so."""
        return "" if (self.as_truth(before)[:, :, 4] >= 0).any() else "nothing is detected"

    def _kept(self, before: Array, after: Array) -> tuple[Floats, Floats, Floats]:
        """Return for each sample how many shown detections both have, and how many each has.

        Both have one at an IoU of at least 0.5 whose scores differ by at most `MAX_SCORE_CHANGE`.
        """
        first, second = self._without_hidden(before), self._without_hidden(after)
        total, now = ((rows[:, :, 4] >= 0).sum(axis=1).astype(np.float64) for rows in (first, second))
        kept = np.zeros(len(first))
        for matches in match_detections(second, first):
            kept += np.bincount(matches.images, abs(matches.score_changes) <= MAX_SCORE_CHANGE, len(first))
        return kept, total, now

    def as_truth(self, predictions: Array) -> npt.NDArray[np.float32]:
        """Return the boxes that people see as objects of the truth."""
        truth = self._without_hidden(predictions)
        truth[:, :, 5] = 1
        return truth

    def _without_hidden(self, predictions: Array) -> npt.NDArray[np.float32]:
        """Return the predictions without the boxes that people do not see."""
        how, boxes = self.signature.decode, predictions.astype(np.float32)
        boxes[boxes[:, :, 5] < (how.shown_score if how else 0), 4] = -1
        return boxes

    def class_counts(self, predictions: Array, truth: Array) -> ClassCounts:
        """Return the shown boxes that are right at an IoU of 0.5, all shown ones, and the objects, of each class."""
        count = max(len(self.signature.labels), int(truth[:, :, 4].max(initial=-1)) + 1)
        hits, shown, objects = (np.zeros((len(truth), count)) for _ in range(3))
        ranked: list[float | None] = [None] * count
        for each in match_detections(predictions, truth):
            ranked[each.number] = float(average_precisions(each, np.ones((1, len(truth))))[0])
        for each in match_detections(self._without_hidden(predictions), truth):
            hits[:, each.number] = np.bincount(each.images, each.correct[0], len(truth))
            shown[:, each.number] = np.bincount(each.images, ~each.ignored[0], len(truth))
            objects[:, each.number] = each.objects
        return ClassCounts(hits, shown, objects, ranked)

    def samples_per_class(self, truth: Array) -> list[int]:
        """Return how many images show each class."""
        return [int((truth[:, :, 4] == number).any(axis=1).sum()) for number in range(len(self.signature.labels))]
