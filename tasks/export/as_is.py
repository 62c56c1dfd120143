"""Export of a model that is already ONNX."""

from pathlib import Path
from typing import ClassVar, Literal

from gauntlet.core.signature import Signature
from gauntlet.onnx_model.model_file import copy_model
from tasks.export.base import Exporter


class AsIs(Exporter):
    """Use the ONNX file as it is."""

    kind: Literal["as-is"] = "as-is"

    framework: ClassVar[str] = "onnx"

    def write(self, model: Path, signature: Signature, path: Path) -> None:
        """Copy the model with its external data."""
        copy_model(model, path)
