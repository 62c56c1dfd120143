"""A model that is ONNX already."""

from pathlib import Path
from typing import ClassVar, Literal

from tasks.frozen import Frozen
from tasks.model_file import copy_model
from tasks.signature import Signature


class AsIs(Frozen):
    """Take the file that was brought."""

    kind: Literal["as-is"] = "as-is"

    takes: ClassVar[str] = "onnx"

    def write(self, model: Path, signature: Signature, path: Path) -> None:
        """Copy the model, and put its weights beside it where they lie in files of their own."""
        copy_model(model, path)
