"""Two exporters and the source: three witnesses. Where two agree, the third is wrong."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from tasks.data.dataset import Arrays
from tasks.data.golden import Case, Golden
from tasks.errors import StageError
from tasks.export.dynamo import Dynamo
from tasks.export.torchscript import TorchScript
from tasks.frozen import Frozen, Number
from tasks.report import Check
from tasks.runtime.calls import calls
from tasks.runtime.session import open_session
from tasks.signature import Signature
from tasks.statistics import max_abs_error, max_rel_error

Exporter = Literal["torchscript", "dynamo"]
BATCH = 7  # not the batch that the exporters saw


class Distance(Frozen):
    """How far two of the three are apart, on one kind of inputs."""

    data: str = Field(description="real, random, or a size")
    between: str
    max_abs_error: Number
    max_rel_error: Number = Field(description="over the largest magnitude of the first one's output")


class Vote(Frozen):
    """What the three said."""

    used: Exporter = Field(description="the exporter whose model goes on")
    wrong: dict[Exporter, str] = Field(description="each exporter that the source does not agree with, and why")
    distances: tuple[Distance, ...] = Field(description="none where the runtime loads neither model")

    def check(self) -> Check:
        """Return the check that names the exporter that is wrong; it stops the run when none is right."""
        if not self.distances:
            return Check(
                name="export.wrong_exporters",
                value=None,
                op="==",
                limit=0,
                severity="warning",
                detail="there was no vote: " + "; ".join(self.wrong.values()),
                remedy="the structure gate tells what the runtime lacks",
            )
        alone = "; the other one agrees with the source and is used"
        told = "; ".join(f"{exporter}: {why}" for exporter, why in self.wrong.items())
        remedy = "export.kind names the exporter that is right; a network's code at fault is named by its warnings"
        if len(self.wrong) == 2:
            remedy = (
                "change the network so that nothing in Python depends on values or sizes, or bring another exporter"
            )
        return Check(
            name="export.wrong_exporters",
            value=len(self.wrong),
            op="==",
            limit=0,
            severity="error" if len(self.wrong) == 2 else "warning",
            detail=told + (alone if len(self.wrong) == 1 else ""),
            remedy=remedy if self.wrong else "",
        )


class Both(Frozen):
    """Both of PyTorch's exporters. The one that agrees with the source is used, and the one that does not is named."""

    kind: Literal["both"] = "both"
    prefer: Exporter = Field("torchscript", description="whose model is used when both are right")
    torchscript: TorchScript = Field(default_factory=TorchScript)
    dynamo: Dynamo = Field(default_factory=Dynamo)
    max_rel_error: float = Field(1e-4, ge=0, description="largest difference over the output's largest magnitude")

    takes: ClassVar[str] = "torch"

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return (*self.torchscript.files(), *self.dynamo.files())

    def write(self, model: Path, signature: Signature, path: Path, golden: Golden) -> Vote:
        """Export the network twice, let the two vote with the source, and write the right one to `path`.

        Raises:
            StageError: when neither exporter can export it.
        """
        found: dict[Exporter, Mapping[str, Arrays]] = {}
        wrong: dict[Exporter, str] = {}
        written: list[Exporter] = []
        files: dict[Exporter, Path] = {}
        exporters: dict[Exporter, TorchScript | Dynamo] = {"torchscript": self.torchscript, "dynamo": self.dynamo}
        for name, exporter in exporters.items():
            files[name] = path.with_name(name) / path.name
            files[name].parent.mkdir(exist_ok=True)
            try:
                exporter.write(model, signature, files[name])
                written.append(name)
                found[name] = _answers(files[name], golden.cases)
            except StageError as error:
                wrong[name] = str(error)
        if not written:
            raise StageError("; ".join(wrong.values()))
        source = {title: case.outputs for title, case in golden.cases.items()}
        distances = [row for name in found for row in _distances("source", source, name, found[name])]
        if len(found) == 2:
            distances += _distances("torchscript", found["torchscript"], "dynamo", found["dynamo"])
        wrong |= {name: why for name in found if (why := self._complaint(name, distances))}
        right = [name for name in (self.prefer, *exporters) if name in found and name not in wrong]
        used = (right or [name for name in (self.prefer, *exporters) if name in written])[0]
        for file in files[used].parent.iterdir():
            file.rename(path.with_name(file.name))
        return Vote(used=used, wrong=wrong, distances=tuple(distances))

    def _complaint(self, name: Exporter, distances: list[Distance]) -> str:
        """Say how far an exporter is from the source, and whom the other one agrees with; nothing where it is near."""
        far = {d.between: d for d in sorted(distances, key=_size) if not d.max_rel_error <= self.max_rel_error}
        mine = far.get(f"source and {name}")
        if mine is None:
            return ""
        told = f"{mine.max_abs_error:.3g} from the source on {mine.data} inputs"
        if "source and dynamo" in far and "source and torchscript" in far and BETWEEN not in far:
            told += ", and the other exporter agrees with it: look whether the source itself is repeatable"
        return told


BETWEEN = "torchscript and dynamo"


def _size(distance: Distance) -> float:
    return float(np.nan_to_num(distance.max_rel_error, nan=np.inf))


def _answers(model: Path, cases: Mapping[str, Case]) -> dict[str, Arrays]:
    session = open_session(model)
    return {title: calls(session, case.inputs).run(BATCH) for title, case in cases.items()}


def _distances(first: str, mine: Mapping[str, Arrays], second: str, theirs: Mapping[str, Arrays]) -> list[Distance]:
    rows = []
    for data, outputs in mine.items():
        pairs = [(array, theirs[data].get(name)) for name, array in outputs.items()]
        fits = all(other is not None and other.shape == array.shape for array, other in pairs)
        rows.append(
            Distance(
                data=data,
                between=f"{first} and {second}",
                max_abs_error=max(max_abs_error(b, a) for a, b in pairs if b is not None) if fits else np.inf,
                max_rel_error=max(max_rel_error(b, a) for a, b in pairs if b is not None) if fits else np.inf,
            )
        )
    return rows
