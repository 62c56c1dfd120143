"""What a model expects and returns, written into the model itself, for whoever serves it."""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError, model_validator

from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen

if TYPE_CHECKING:
    import onnx

METADATA_KEY = "gauntlet.signature"


class TensorSpec(Frozen):
    """One named input or output. A named axis in `shape` is dynamic; the first axis is the batch."""

    name: str
    dtype: str = Field(description="numpy's name of the type: float32, int64, ...")
    shape: tuple[int | str, ...]


class HogFeatures(Frozen):
    """Histograms of oriented gradients of a grey picture (Dalal and Triggs, CVPR 2005), by scikit-image."""

    orientations: int = Field(9, ge=1, description="bins of the gradient's direction")
    pixels_per_cell: int = Field(4, ge=2, description="height and width of a cell, in pixels")
    cells_per_block: int = Field(2, ge=1, description="height and width of a normalised block, in cells")


class Preprocessing(Frozen):
    """How a picture becomes an input: repeat a grey channel, resize, `pixel * scale`, then `(x - mean) / std`.

    With `hog`, the input is a vector: the histograms of the first channel's picture.
    """

    height: int = Field(gt=0, description="pixels")
    width: int = Field(gt=0, description="pixels")
    scale: float = Field(gt=0, description="factor that takes raw pixel values to 0..1")
    mean: tuple[float, ...] = Field(description="one a channel, after scaling")
    std: tuple[float, ...] = Field(description="one a channel, after scaling")
    resize: Literal["stretch", "crop"] = Field(
        "stretch", description="the whole picture, or the largest part of the right shape in its middle"
    )
    hog: HogFeatures | None = None


class OperatorLibrary(Frozen):
    """A shared library that a session must have before it can load the model."""

    name: str
    sha256: str


class Signature(Frozen):
    """A model's contract with its callers."""

    task: Literal["classification", "detection", "segmentation", "arrays"] = "classification"
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    primary_output: str | None = Field(
        None, description="the output that names the class: a score each, or the class itself"
    )
    layout: Literal["NCHW", "NHWC", "none"] = "NCHW"
    preprocessing: Preprocessing | None = None
    labels: tuple[str, ...] = ()
    operator_libraries: tuple[OperatorLibrary, ...] = Field((), description="what implements the model's own operators")

    @model_validator(mode="before")
    @classmethod
    def _old_name(cls, values: Any) -> Any:
        """Read `answer`, as files from before `primary_output` have it."""
        if isinstance(values, dict) and "answer" in values:
            values = {"primary_output" if key == "answer" else key: value for key, value in values.items()}
        return values

    def write(self, model: "onnx.ModelProto") -> None:
        """Put the signature into the model's `metadata_props`, in place of an older one."""
        import onnx.helper

        kept = {p.key: p.value for p in model.metadata_props}
        onnx.helper.set_model_props(model, kept | {METADATA_KEY: self.model_dump_json()})

    @classmethod
    def read(cls, model: "onnx.ModelProto") -> "Signature":
        """Return the signature that the model carries.

        Raises:
            StageError: when it carries none, or one that cannot be read.
        """
        for entry in model.metadata_props:
            if entry.key == METADATA_KEY:
                try:
                    return cls.model_validate_json(entry.value)
                except ValidationError as error:
                    raise StageError(f"the model's signature ('{METADATA_KEY}') cannot be read: {error}") from error
        raise StageError(f"the model carries no signature (metadata_props has no '{METADATA_KEY}'); export it again")


def signature_from_graph(model: "onnx.ModelProto") -> Signature:
    """Return what the graph itself says of a model's contract: names, types and shapes of its tensors.

    An unnamed dynamic axis is named for its place. Values that are no tensors have no shape and are left out.
    """
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = tuple(_spec(value) for value in model.graph.input if value.name not in stored)
    outputs = tuple(_spec(value) for value in model.graph.output if value.type.HasField("tensor_type"))
    return Signature(task="arrays", inputs=inputs, outputs=outputs, layout="none")


def _spec(value: "onnx.ValueInfoProto") -> TensorSpec:
    import onnx.helper

    kind = value.type.tensor_type
    name = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name if kind.elem_type else "undefined"
    axes = tuple(
        axis.dim_value if axis.HasField("dim_value") else axis.dim_param or f"{value.name}_{place}"
        for place, axis in enumerate(kind.shape.dim)
    )
    return TensorSpec(name=value.name, dtype="str" if name == "object" else name, shape=axes)
