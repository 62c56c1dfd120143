"""A SavedModel first, and that to ONNX: the way of every TensorFlow model that is no Keras network any more."""

import tempfile
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from tasks.export.tf_graph import NEWEST_OPSET, convert_folder, from_saved_model
from tasks.frozen import Frozen
from tasks.signature import Signature
from tasks.sources.keras import files


class SavedModel(Frozen):
    """`model.export(folder)`, then what `tf2onnx.convert --saved-model folder` does."""

    kind: Literal["saved-model"] = "saved-model"
    opset: int = Field(18, ge=13, le=NEWEST_OPSET, description="ONNX operator set; 18 is the newest of this exporter")

    takes: ClassVar[str] = "keras"
    packages: ClassVar[dict[str, str]] = {"keras": "tensorflow", "tensorflow": "tensorflow", "tf2onnx": "tensorflow"}

    def write(self, model: Path, signature: Signature, path: Path) -> None:
        """Convert the model saved in `model` to `path`.

        Raises:
            StageError: when tf2onnx cannot.
        """
        if model.suffix == files.SAVED_MODEL:
            from_saved_model(model, signature, path, self.opset)
            return
        network = files.load(model)
        with tempfile.TemporaryDirectory() as folder:
            network.export(folder, format="tf_saved_model", verbose=False)
            convert_folder(Path(folder), "serving_default", signature, path, self.opset)
