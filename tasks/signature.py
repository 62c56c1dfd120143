"""What a model expects and returns, written into the model itself, so that serving cannot skew from training."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field, ValidationError

from tasks.errors import StageError
from tasks.frozen import Frozen

if TYPE_CHECKING:
    import onnx

METADATA_KEY = "gauntlet.signature"


class TensorSpec(Frozen):
    """One named input or output. A named axis in `shape` is dynamic; the first axis is the batch."""

    name: str
    dtype: str = Field(description="numpy's name of the type: float32, int64, ...")
    shape: tuple[int | str, ...]


class Preprocessing(Frozen):
    """How a picture becomes an input: repeat a grey channel, resize, `pixel * scale`, then `(x - mean) / std`."""

    height: int = Field(gt=0, description="pixels")
    width: int = Field(gt=0, description="pixels")
    scale: float = Field(gt=0, description="factor that takes raw pixel values to 0..1")
    mean: tuple[float, ...] = Field(description="one a channel, after scaling")
    std: tuple[float, ...] = Field(description="one a channel, after scaling")


class Signature(Frozen):
    """A model's contract with its callers."""

    task: Literal["classification", "detection", "segmentation", "arrays"] = "classification"
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    layout: Literal["NCHW", "NHWC", "none"] = "NCHW"
    preprocessing: Preprocessing | None = None
    labels: tuple[str, ...] = ()

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
