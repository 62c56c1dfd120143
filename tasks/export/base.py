"""What every exporter has, and the one of a model that is ONNX already."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.core.frozen import Frozen, Kind, Number
from gauntlet.core.report import Check, Severity
from gauntlet.core.signature import Signature
from gauntlet.onnx_model.model_file import copy_model


class OutputDistance(Frozen):
    """Largest difference between two of the three models, on one kind of inputs."""

    data: str = Field(description="real, random, or an input size")
    between: str
    max_abs_error: Number
    max_rel_error: Number = Field(
        description="relative to the range of the first model's output, or to a tenth of its largest magnitude"
    )


class CrossCheck(Frozen):
    """The result of comparing both exporters with the framework model."""

    used: str = Field(description="the exporter whose model is used")
    wrong: dict[str, str] = Field(description="each exporter that differs from the framework model, and how")
    distances: tuple[OutputDistance, ...] = Field(description="empty when the runtime loads neither model")

    def check(self) -> Check:
        """Return the check that names the wrong exporters: a warning for one, an error for both."""
        if not self.distances:
            detail = "exporters not compared: " + "; ".join(self.wrong.values())
            fix = "see the structure gate for what the runtime does not support"
            return Check.of("export.wrong_exporters", None, "==", 0, detail, fix, severity="warning")
        both = len(self.wrong) == 2
        detail = "; ".join(f"{exporter}: {why}" for exporter, why in self.wrong.items())
        remedy = "set export.kind to the correct exporter; its warnings name lines that cause a difference"
        if both:
            remedy = "change the network so that nothing in Python depends on values or sizes, or export it yourself"
        else:
            detail += "; the other one agrees with the source and is used"
        severity: Severity = "error" if both else "warning"
        check = Check(name="export.wrong_exporters", value=len(self.wrong), op="==", limit=0, severity=severity)
        return check.explained(detail, remedy)


class Exporter(Kind, ABC):
    """A kind of `export`."""

    framework: ClassVar[str]
    """The name of the framework whose models it reads."""

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
