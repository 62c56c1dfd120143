"""Modules and programs that Python holds, saved as the files that a run takes."""

import copy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from frameworks.torch.program import EXPORTED, SCRIPTED
from gauntlet.core.errors import StageError, one_line
from gauntlet.frameworks.arguments import Arguments
from gauntlet.frameworks.framework import Sample, TakeSample

if TYPE_CHECKING:
    import torch


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
