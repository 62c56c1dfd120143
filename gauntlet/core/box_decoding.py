"""What a detector's outputs mean: a part of its signature."""

from typing import Literal, Self

from pydantic import Field, model_validator

from gauntlet.core.frozen import Frozen

ONE_OUTPUT = ("yolov8", "yolov5")
SCALED_TO_UNIT = (*ONE_OUTPUT, "suppressed")
"""Forms of detectors that mostly take pixels from 0 to 1."""
ROW = "left top right bottom score class"


class BoxDecoding(Frozen):
    """The form of a detector's outputs, which `wings.detection.box_decoding` explains, and which boxes count."""

    kind: Literal["fcos", "ssd", "detr", "yolov8", "yolov5", "yolo-nas", "suppressed"]
    scores: str = Field(description="output with the scores, or the only one")
    boxes: str | None = Field(None, description="output with the boxes; none where one output has all")
    classes: str | None = Field(None, description="of suppressed with three outputs: that with the classes")
    columns: str = Field(ROW, description="of suppressed: the numbers of a row of the output with the boxes")
    shares: bool = Field(False, description="of suppressed: edges are shares of the image, not pixels")
    first_class: int = Field(0, ge=0, le=1, description="of suppressed: number of the first class")
    count: str | None = Field(None, description="of suppressed: output with the number of rows that count")
    transposed: bool = Field(False, description="of yolov8: the output has a row for each box")
    min_score: float = Field(0.05, ge=0, lt=1, description="boxes with a lower score are dropped")
    max_iou: float = Field(0.5, gt=0, le=1, description="IoU above which one of two boxes of a class is dropped")
    max_detections: int = Field(100, ge=1, le=1000, description="boxes per image, those with the highest scores")
    shown_score: float = Field(0.4, ge=0, lt=1, description="least score of boxes that people see")

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        if self.transposed and self.kind != "yolov8":
            raise ValueError(f"decode.kind {self.kind!r} with transposed: true; remove it: only yolov8 has two forms")
        if missing := set(ROW.split()[: 4 if self.boxes else 6]) - set(self.columns.split()):
            raise ValueError(f"decode.columns {self.columns!r} without {min(missing)}; name every number of a row")
        if self.kind != "suppressed" and (self.columns != ROW or self.shares or self.first_class or self.count):
            raise ValueError(f"decode.kind {self.kind!r} with columns, shares, first_class or count; remove them")
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
