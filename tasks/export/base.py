"""What every exporter has, and the one of a model that is ONNX already."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Literal

from gauntlet.core.frozen import Frozen
from gauntlet.core.signature import Signature
from gauntlet.onnx_model.model_file import copy_model
from tasks.export.cross_check import CrossCheck


class Exporter(Frozen, ABC):
    """A kind of `export`."""

    kind: str

    framework: ClassVar[str]
    """The name of the framework whose models it reads."""
    packages: ClassVar[dict[str, str]] = {}
    """Required package -> the extra that installs it."""

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return ()

    @abstractmethod
    def write(self, model: Path, signature: Signature, path: Path) -> None:
        """Export the model in the file `model` to `path`. Raises StageError when that fails."""

    def write_checked(self, model: Path, signature: Signature, path: Path, golden: Path) -> CrossCheck | None:
        """Export, and compare with the golden outputs where several exporters can; see `write`."""
        self.write(model, signature, path)
        return None


class AsIs(Exporter):
    """Use the ONNX file as it is."""

    kind: Literal["as-is"] = "as-is"

    framework: ClassVar[str] = "onnx"

    def write(self, model: Path, signature: Signature, path: Path) -> None:
        """Copy the model with its external data."""
        copy_model(model, path)
