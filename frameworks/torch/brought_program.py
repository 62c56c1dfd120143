"""Pretrained PyTorch programs: a file of `torch.export.save` or `torch.jit.save`, which needs no code beside it."""

import copy
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from frameworks.arguments import Arguments
from frameworks.loaded_model import BroughtFile, report_loaded
from frameworks.session import LoadedModel
from frameworks.torch import program
from frameworks.torch.program import EXPORTED, SCRIPTED
from gauntlet.core.artifact import Store
from gauntlet.core.errors import StageError, one_line
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.splits import Splits
from gauntlet.frameworks.framework import Sample, TakeSample
from tasks.train.facts import TrainFacts
from tasks.train.other_lengths import Lengths
from tasks.train.states import StatePairs

if TYPE_CHECKING:
    import torch


class _TorchProgram(BroughtFile):
    primary_output: str | None = Field(None, description="output that names the class; default: the first with scores")
    states: StatePairs = None
    trust: bool = Field(False, description="read the file, which may run code; needed once for each file")

    packages: ClassVar[dict[str, str]] = {"torch": "torch"}
    suffix: ClassVar[str]

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
    lengths: Lengths = ()
    suffix: ClassVar[str] = program.EXPORTED
    exporters: ClassVar[tuple[str, ...]] = ("dynamo",)


class ScriptedModule(_TorchProgram):
    """Load a TorchScript program. Its arguments are the data's arrays of the same names, in the data's layout."""

    kind: Literal["torchscript"] = "torchscript"
    model: Path = Field(description="the .pt file that torch.jit.save wrote")
    suffix: ClassVar[str] = program.SCRIPTED
    exporters: ClassVar[tuple[str, ...]] = ("torchscript",)


def save_module(model: Any, sample: TakeSample, folder: Path) -> Path | None:
    """Save a module as torch.export captures it in evaluation mode, with any batch size; a program as it is.

    Raises:
        StageError: when it cannot be captured on the sample.
    """
    if "torch" not in sys.modules:
        return None
    import torch

    if isinstance(model, torch.jit.ScriptModule):
        path = folder / f"model{SCRIPTED}"
        model.save(path)
        return path
    if isinstance(model, torch.export.ExportedProgram):
        path, program = folder / f"model{EXPORTED}", model
    elif isinstance(model, torch.nn.Module):
        path, program = folder / f"{type(model).__name__}{EXPORTED}", _captured(model, sample())
    else:
        return None
    torch.export.save(program, path)
    return path


def _captured(module: "torch.nn.Module", sample: Sample) -> "torch.export.ExportedProgram":
    import torch

    module = copy.deepcopy(module).cpu().eval()  # the user's own stays as it is
    if isinstance(sample, dict):
        sample = tuple(sample[name] for name in Arguments.of(module.forward).call_order(sample))
    floats = {weight.dtype for weight in module.parameters() if weight.is_floating_point()} or {torch.float32}
    tensors = [torch.from_numpy(np.resize(array, (2, *array.shape[1:]))) for array in sample]
    if len(floats) == 1:
        [dtype] = floats
        tensors = [each.to(dtype) if each.is_floating_point() else each for each in tensors]
    batch = torch.export.Dim("batch")
    try:
        return torch.export.export(module, tuple(tensors), dynamic_shapes=tuple({0: batch} for _ in tensors))
    except Exception as error:  # a module may fail in any way
        shapes = ", ".join(str(tuple(each.shape)) for each in tensors)
        raise StageError(
            f"{type(module).__name__}: torch.export cannot capture it on inputs of shape {shapes}: {one_line(error)}. "
            "Fix: give such inputs as it takes with sample=, or save it with torch.jit.save and give the file"
        ) from error
