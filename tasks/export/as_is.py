"""A model that is ONNX already."""

import shutil
from pathlib import Path
from typing import ClassVar, Literal

from tasks.frozen import Frozen
from tasks.signature import Signature


class AsIs(Frozen):
    """Take the file that was brought."""

    kind: Literal["as-is"] = "as-is"

    takes: ClassVar[str] = "onnx"

    def write(self, model: Path, signature: Signature, path: Path) -> None:
        """Copy the model, and its weights where they lie beside it."""
        for file in model.parent.iterdir():
            shutil.copyfile(file, path.with_name(file.name))
