"""Cross-check PyTorch's two exporters against the framework model."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from frameworks.torch.dynamo import Dynamo
from frameworks.torch.torchscript import TorchScript
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import Golden, GoldenCase
from gauntlet.metrics.error_metrics import max_abs_error, max_normalized_error
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from tasks.export.base import CrossCheck, Exporter, OutputDistance

ExporterName = Literal["torchscript", "dynamo"]
MAX_REL_ERROR = 1e-4
"""Of an exporter's outputs from the framework model's, relative as numerics.max_rel_error is."""
BATCH = 7  # differs from the batch size of the exporters' example


class BothTorchExporters(Exporter):
    """Both of PyTorch's exporters. One that agrees with the framework model is used; one that does not is reported."""

    kind: Literal["both"] = "both"
    packages: ClassVar[dict[str, str]] = {"torch": "torch"}
    prefer: ExporterName = Field("torchscript", description="the exporter to use when both are right")
    torchscript: TorchScript = Field(default_factory=TorchScript)
    dynamo: Dynamo = Field(default_factory=Dynamo)

    framework: ClassVar[str] = "torch"

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return (*self.torchscript.files(), *self.dynamo.files())

    def write(self, model: Path, signature: Signature, path: Path) -> None:
        """Export with the preferred exporter, without a comparison."""
        getattr(self, self.prefer).write(model, signature, path)

    def write_checked(self, model: Path, signature: Signature, path: Path, golden: Path) -> CrossCheck:
        """Export with both exporters, compare both models with the source, and keep one. StageError when both fail."""
        cases = Golden.load(golden).cases
        exporters: dict[ExporterName, TorchScript | Dynamo] = {"torchscript": self.torchscript, "dynamo": self.dynamo}
        files = {name: path.with_name(name) / path.name for name in exporters}
        written: list[ExporterName] = []
        outputs: dict[ExporterName, Mapping[str, NamedArrays]] = {}
        wrong: dict[ExporterName, str] = {}
        for name, exporter in exporters.items():
            files[name].parent.mkdir(exist_ok=True)
            try:
                exporter.write(model, signature, files[name])
                written.append(name)
                outputs[name] = _outputs(files[name], cases)
            except StageError as error:
                wrong[name] = str(error)
        if not written:
            raise StageError("; ".join(wrong.values()))
        reference = {title: case.outputs for title, case in cases.items()}
        distances = [row for name in outputs for row in _distances("source", reference, name, outputs[name])]
        if len(outputs) == 2:
            distances += _distances("torchscript", outputs["torchscript"], "dynamo", outputs["dynamo"])
        wrong |= {name: why for name in outputs if (why := self._difference(name, distances))}
        candidates = [name for name in (self.prefer, *exporters) if name in written]
        used = next((name for name in candidates if name not in wrong), candidates[0])
        for file in files[used].parent.iterdir():
            file.rename(path.with_name(file.name))
        return CrossCheck(used=used, wrong=wrong, distances=tuple(distances))

    def _difference(self, name: ExporterName, distances: list[OutputDistance]) -> str:
        """Describe how an exporter differs from the framework model; empty within the tolerance."""
        ascending = sorted(distances, key=lambda d: np.nan_to_num(d.max_rel_error, nan=np.inf))
        far = {d.between: d for d in ascending if not d.max_rel_error <= MAX_REL_ERROR}
        largest = far.get(f"source and {name}")
        if largest is None:
            return ""
        detail = f"{largest.max_abs_error:.3g} from the source on {largest.data} inputs"
        if far.keys() == {"source and dynamo", "source and torchscript"}:
            detail += ", and the other exporter agrees with it: check whether the source itself is repeatable"
        return detail


def _outputs(model: Path, cases: Mapping[str, GoldenCase]) -> dict[str, NamedArrays]:
    session = open_session(model)
    return {title: batched_inference(session, case.inputs).run(BATCH) for title, case in cases.items()}


def _distances(
    first: str, expected: Mapping[str, NamedArrays], second: str, actual: Mapping[str, NamedArrays]
) -> list[OutputDistance]:
    rows = []
    for data, outputs in expected.items():
        pairs = [(actual[data].get(name), array) for name, array in outputs.items()]
        absolute = relative = np.inf
        if all(other is not None and other.shape == array.shape for other, array in pairs):
            absolute = max(max_abs_error(other, array) for other, array in pairs if other is not None)
            relative = max(max_normalized_error(other, array) for other, array in pairs if other is not None)
        between = f"{first} and {second}"
        rows.append(OutputDistance(data=data, between=between, max_abs_error=absolute, max_rel_error=relative))
    return rows
