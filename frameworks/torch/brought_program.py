"""Pretrained PyTorch programs: a file of `torch.export.save` or `torch.jit.save`, which needs no code beside it."""

import shutil
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from frameworks.loaded_model import report_loaded
from frameworks.torch import program
from gauntlet.core.artifact import Store
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import Splits
from gauntlet.frameworks.session import LoadedModel
from tasks.train.base import Brought
from tasks.train.facts import TrainFacts
from tasks.train.states import StatePairs


class _TorchProgram(Brought):
    kind: str
    model: Path
    primary_output: str | None = Field(None, description="output that names the class; default: the first with scores")
    states: StatePairs = None
    trust: bool = Field(False, description="read the file, which may run code; needed once for each file")

    packages: ClassVar[dict[str, str]] = {"torch": "torch"}
    suffix: ClassVar[str]

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return (self.model,)

    def load_model(self, store: Store) -> LoadedModel:
        """Return the program; raise StageError if it cannot be read, or is neither trusted nor in the store."""
        return program.load_program(self.model, self.suffix, trust=self.trust or store.holds(self.model))

    def fit(self, splits: Splits, signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Load the program and record its golden outputs. See `tasks.train.train`."""

        def store_as(_: tuple[TensorSpec, ...]) -> Path:
            path = workspace.folder / f"model{self.suffix}"
            shutil.copyfile(self.model, path)
            return path

        return report_loaded(self, self.load_model(workspace.store), store_as, splits, signature, workspace)


class ExportedProgram(_TorchProgram):
    """Load a program that `torch.export` captured. It says its inputs, and which of their axes are open."""

    kind: Literal["exported-program"] = "exported-program"
    model: Path = Field(description="the .pt2 file that torch.export.save wrote")
    suffix: ClassVar[str] = program.EXPORTED
    exporters: ClassVar[tuple[str, ...]] = ("dynamo",)


class ScriptedModule(_TorchProgram):
    """Load a TorchScript program. Its arguments are the data's arrays of the same names, in the data's layout."""

    kind: Literal["torchscript"] = "torchscript"
    model: Path = Field(description="the .pt file that torch.jit.save wrote")
    suffix: ClassVar[str] = program.SCRIPTED
    exporters: ClassVar[tuple[str, ...]] = ("torchscript",)
