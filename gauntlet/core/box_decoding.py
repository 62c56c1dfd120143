"""What a detector's outputs mean: a part of its signature."""

from typing import Literal, Self

from pydantic import Field, model_validator

from gauntlet.core.frozen import Frozen

ONE_OUTPUT = ("yolov8", "yolov5")
SCALED_TO_UNIT = (*ONE_OUTPUT, "suppressed")
"""Forms of detectors that mostly take pixels from 0 to 1."""
COLUMNS = {"left", "top", "right", "bottom"}


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
    - `yolov8`: one output, shape (n, 4 + classes, boxes), or (n, boxes, 4 + classes) if `transposed`: center x,
      center y, width and height in pixels of the input, then a probability per class.
    - `yolov5`: one output, shape (n, boxes, 5 + classes): the same four numbers, the probability of an object, and that
      of each class given an object.
    - `yolo-nas`: `scores` are probabilities, shape (n, boxes, classes), and `boxes` left, top, right and bottom edge in
      pixels of the input, shape (n, boxes, 4) (Aharon et al., Super-Gradients, 2023).
    - `suppressed`: the suppression is part of the model, which has a fixed number of rows, or one for each object.
      Either one output, shape (n, boxes, 6): left, top, right and bottom edge in pixels of the input, score, class
      (Wang et al., YOLOv10, NeurIPS 2024); or three: `boxes` (n, boxes, 4), `scores` (n, boxes) and `classes`
      (n, boxes), as of NVIDIA's `EfficientNMS`. Rows with a score below `min_score` or a negative class are padding,
      and so are those from the number in `count` on.
    """

    kind: Literal["fcos", "ssd", "detr", "yolov8", "yolov5", "yolo-nas", "suppressed"]
    scores: str = Field(description="output with the scores; of yolov8, yolov5 and suppressed, the only one")
    boxes: str | None = Field(None, description="name of the output with the boxes; none where one output has all")
    classes: str | None = Field(None, description="for suppressed with three outputs: name of that with the classes")
    columns: str = Field(
        "left top right bottom score class",
        description="for suppressed: the numbers of a row, others than these ignored",
    )
    shares: bool = Field(False, description="for suppressed: whether edges are shares of the image, not pixels")
    first_class: int = Field(
        0, ge=0, le=1, description="for suppressed: number of the first class; 1 after a background"
    )
    count: str | None = Field(None, description="for suppressed: output with the number of rows that count")
    transposed: bool = Field(False, description="for yolov8: whether the output has a row for each box")
    min_score: float = Field(0.05, ge=0, lt=1, description="boxes with a lower score are dropped")
    max_iou: float = Field(
        0.5, gt=0, le=1, description="intersection over union above which one of two boxes of a class is dropped"
    )
    max_detections: int = Field(100, ge=1, le=1000, description="boxes per image, those with the highest scores")
    shown_score: float = Field(0.4, ge=0, lt=1, description="least score of boxes that people see")

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        if self.transposed and self.kind != "yolov8":
            raise ValueError(f"decode.kind {self.kind!r} with transposed: true; remove it: only yolov8 has two forms")
        if missing := (COLUMNS if self.boxes else COLUMNS | {"score", "class"}) - set(self.columns.split()):
            raise ValueError(f"decode.columns {self.columns!r} without {min(missing)}; name every number of a row")
        if self.kind == "suppressed":
            if (self.boxes is None) != (self.classes is None):
                names = f"boxes: {self.boxes} and classes: {self.classes}"
                raise ValueError(f"decode.kind 'suppressed' with {names}; give both, or none where one output has all")
            return self
        if self.classes is not None:
            raise ValueError(
                f"decode.kind {self.kind!r} with classes: {self.classes}; remove it: scores tell the class"
            )
        if (self.boxes is None) != (self.kind in ONE_OUTPUT):
            fix = "remove boxes: one output has both" if self.boxes else "name the output with the boxes (boxes: NAME)"
            raise ValueError(f"decode.kind {self.kind!r} with boxes: {self.boxes}; {fix}")
        return self

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs that are read."""
        return tuple(name for name in (self.scores, self.count, self.classes, self.boxes) if name is not None)

    @property
    def in_pixels(self) -> bool:
        """Whether boxes do not depend on the size of the input."""
        return self.kind in (*ONE_OUTPUT, "yolo-nas") or (self.kind == "suppressed" and not self.shares)

    @property
    def has_sets(self) -> bool:
        """Whether the rows of an output are a set: noise may change their order, and means nothing value by value."""
        return self.kind == "suppressed"
