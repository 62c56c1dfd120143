"""A model's signature: its inputs, outputs and preprocessing, stored in the model itself."""

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, ValidationError, model_validator

from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.states import States

if TYPE_CHECKING:
    import onnx


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
            fix = "remove it: scores tell the class"
            raise ValueError(f"decode.kind {self.kind!r} with classes: {self.classes}; {fix}")
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


METADATA_KEY = "gauntlet.signature"

NumberTask = Literal["regression", "ranking", "quantiles"]
Task = Literal[
    "classification", "multi-label", "tagging", NumberTask, "detection", "segmentation", "text", "embedding", "arrays"
]
"""The kind of problem that a model answers; see `gauntlet.problems`."""


class TensorSpec(Frozen):
    """One named input or output. A named axis in `shape` is dynamic; the first axis is the batch."""

    name: str
    dtype: str = Field(description="NumPy's name of the type: float32, int64, ...")
    shape: tuple[int | str, ...]

    @property
    def is_open(self) -> bool:
        """Whether another axis than the batch is dynamic."""
        return sum(isinstance(axis, str) for axis in self.shape) > 1


class HogFeatures(Frozen):
    """Histograms of oriented gradients of a grayscale image (Dalal and Triggs, CVPR 2005), by scikit-image."""

    orientations: int = Field(9, ge=1, description="bins of the gradient's direction")
    pixels_per_cell: int = Field(4, ge=2, description="height and width of a cell, in pixels")
    cells_per_block: int = Field(2, ge=1, description="height and width of a normalized block, in cells")

    def require_fitting(self, height: int, width: int) -> None:
        """Raise ValueError where an image of this size has no whole block."""
        block = self.pixels_per_cell * self.cells_per_block
        if block > min(height, width):
            size = f"pixels_per_cell * cells_per_block = {block} pixels"
            raise ValueError(f"hog: a block of {size} is larger than image_size {min(height, width)}")


Layout = Literal["NCHW", "NHWC", "none"]
Resize = Literal["stretch", "crop", "letterbox"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
ChannelOrder = Literal["RGB", "BGR"]
IMAGE_SCALE = 1 / 255
"""Of pixels in image files."""


class Preprocessing(Frozen):
    """From image to input: repeat a gray channel, resize, `pixel * scale`, then `(x - mean) / std`.

    Interpolation is Pillow's: all kinds but `nearest` are antialiased. With `hog`, the input is the vector of the first
    channel's histograms. With `in_graph`, the model itself normalizes: its input is the resized RGB or gray image,
    uint8, channels last.
    """

    height: int = Field(gt=0, description="pixels")
    width: int = Field(gt=0, description="pixels")
    scale: float = Field(gt=0, description="factor that maps raw pixel values to 0..1")
    mean: tuple[float, ...] = Field(description="per channel, after scaling")
    std: tuple[float, ...] = Field(description="per channel, after scaling")
    resize: Resize = Field(
        "stretch",
        description="the whole image; the largest centered part with the aspect ratio of the input (crop); or the "
        "whole image in its own aspect ratio between two bars (letterbox)",
    )
    padding: int = Field(114, ge=0, le=255, description="level of a letterbox's bars, of 255")
    interpolation: Interpolation = "bilinear"
    channel_order: ChannelOrder = Field("RGB", description="of the input, and of mean and std")
    hog: HogFeatures | None = None
    in_graph: bool = Field(False, description="whether the model does all but the resizing, on uint8 images")


class OperatorLibrary(Frozen):
    """A shared library that a session must register before it loads the model."""

    name: str
    sha256: str


class Signature(Frozen):
    """A model's contract with its callers."""

    task: Task = "classification"
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    primary_output: str | None = Field(
        None, description="the output with the prediction: a score per class, the class itself, the values"
    )
    decode: BoxDecoding | None = Field(None, description="of a detector: how its outputs become boxes")
    states: States = Field((), description="of a streaming model: pairs of an input and the output that it becomes")
    layout: Layout = "NCHW"
    columns: tuple[str, ...] = Field((), description="of the table that the model was fitted on, in the matrix' order")
    preprocessing: Preprocessing | None = None
    labels: tuple[str, ...] = ()
    threshold: float | None = Field(
        None, gt=0, lt=1, description="probability from which on the second of two classes is predicted; default: 0.5"
    )
    logit: bool = Field(
        False, description="whether the primary output has logits: of two classes' second, a mask, or labels"
    )
    operator_libraries: tuple[OperatorLibrary, ...] = Field(
        (), description="libraries with the model's custom operators"
    )

    @property
    def takes_images(self) -> bool:
        """Whether callers may give images: the model has one input, with a known preprocessing."""
        return self.preprocessing is not None and len(self.inputs) == 1

    @property
    def class_output(self) -> str | None:
        """The output whose largest value is the predicted class; None for models that are no classifiers."""
        if self.task != "classification":
            return None
        return self.primary_output or (self.outputs[0].name if self.outputs else None)

    @property
    def sets(self) -> tuple[str, ...]:
        """The outputs that hold a set of boxes: noise may change the order and the number of rows."""
        return self.decode.outputs if self.decode is not None and self.decode.kind == "suppressed" else ()

    def write(self, model: "onnx.ModelProto") -> None:
        """Store the signature in the model's `metadata_props`, replacing an older one."""
        import onnx.helper

        kept = {p.key: p.value for p in model.metadata_props}
        onnx.helper.set_model_props(model, kept | {METADATA_KEY: self.model_dump_json()})

    @classmethod
    def read(cls, model: "onnx.ModelProto") -> "Signature":
        """Return the model's signature; `StageError` when there is none, or when it cannot be read."""
        for entry in model.metadata_props:
            if entry.key == METADATA_KEY:
                try:
                    return cls.model_validate_json(entry.value)
                except ValidationError as error:
                    raise StageError(f"the model's signature ('{METADATA_KEY}') cannot be read: {error}") from error
        raise StageError(f"the model has no signature (metadata_props has no '{METADATA_KEY}'); export it again")

    @classmethod
    def find(cls, model: "onnx.ModelProto") -> "Signature | None":
        """Return the model's signature, or None where it is missing or unreadable."""
        try:
            return cls.read(model)
        except StageError:
            return None


def signature_from_graph(model: "onnx.ModelProto") -> Signature:
    """Return the signature of a graph alone: dynamic axes get names, outputs other than tensors are left out."""
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = tuple(_spec(value) for value in model.graph.input if value.name not in stored)
    outputs = tuple(_spec(value) for value in model.graph.output if value.type.HasField("tensor_type"))
    return Signature(task="arrays", inputs=inputs, outputs=outputs, layout="none")


def _spec(value: "onnx.ValueInfoProto") -> TensorSpec:
    import onnx.helper

    kind = value.type.tensor_type
    name = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name if kind.elem_type else "undefined"
    axes = tuple(
        axis.dim_value if axis.HasField("dim_value") else _axis_name(value.name, index, axis.dim_param)
        for index, axis in enumerate(kind.shape.dim)
    )
    return TensorSpec(name=value.name, dtype="str" if name == "object" else name, shape=axes)


def _axis_name(tensor: str, index: int, name: str) -> str:
    """Return an axis' own name, or one of its place; `?`, as Paddle writes it, is a name only for the batch."""
    return name if name and (name != "?" or index == 0) else f"{tensor}_{index}"
