"""What a detector's outputs mean: a part of its signature."""

from typing import Literal, Self

from pydantic import Field, model_validator

from gauntlet.core.frozen import Frozen

ONE_OUTPUT = ("yolov8", "yolov5")


class BoxDecoding(Frozen):
    """The form of a detector's outputs, and which boxes among them are predictions.

    - `fcos`: `scores` are logits for the cells of a grid over the image, shape (n, classes, rows, columns), and `boxes`
      the logarithms of the distances, in cells, from a cell's center to the left, top, right and bottom edge of its
      box, shape (n, 4, rows, columns) (Tian et al., FCOS, ICCV 2019).
    - `ssd`: `scores` are probabilities, shape (n, boxes, 1 + classes), where class 0 is the background, and `boxes`
      left, top, right and bottom edge as shares of the image, shape (n, boxes, 4) (Liu et al., SSD, ECCV 2016).
    - `detr`: `scores` are logits, shape (n, boxes, classes + 1), where the last class is no object, and `boxes` center
      x, center y, width and height as shares of the image, shape (n, boxes, 4) (Carion et al., DETR, ECCV 2020). There
      is no suppression: each object has one box.
    - `yolov8`: one output, shape (n, 4 + classes, boxes): center x, center y, width and height in pixels of the input,
      then a probability per class.
    - `yolov5`: one output, shape (n, boxes, 5 + classes): the same four numbers, the probability of an object, and that
      of each class given an object.
    """

    kind: Literal["fcos", "ssd", "detr", "yolov8", "yolov5"]
    scores: str = Field(description="name of the output with the scores; for yolov8 and yolov5, of the only one")
    boxes: str | None = Field(None, description="name of the output with the boxes; none for yolov8 and yolov5")
    min_score: float = Field(0.05, ge=0, lt=1, description="boxes with a lower score are dropped")
    max_iou: float = Field(
        0.5, gt=0, le=1, description="of two boxes of one class with a larger intersection over union, one is dropped"
    )
    max_detections: int = Field(100, ge=1, le=1000, description="boxes per image, those with the highest scores")
    shown_score: float = Field(
        0.4, ge=0, lt=1, description="least score of boxes that people see, and that stand for the truth without labels"
    )

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        if (self.boxes is None) != (self.kind in ONE_OUTPUT):
            fix = "remove boxes: one output has both" if self.boxes else "name the output with the boxes (boxes: NAME)"
            raise ValueError(f"decode.kind {self.kind!r} with boxes: {self.boxes}; {fix}")
        return self

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs that are read."""
        return (self.scores,) if self.boxes is None else (self.scores, self.boxes)
