"""Faults of the file itself: weights that lie elsewhere, and what the standard's checker refuses."""

import math
import os
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx

from tasks.diagnose.clues import Clues
from tasks.diagnose.finding import Finding
from tasks.model_file import external_locations, stored_tensors
from tasks.runtime.graph import one_line

MAX_TENSOR_BYTES = 1 << 40


def find_external(clues: Clues) -> Finding | None:
    """Look for external data that is not a file inside the model's folder; nothing is opened."""
    folder = clues.path.resolve().parent
    for place in external_locations(clues.proto):
        why = _out_of_reach(place, folder)
        if why:
            return Finding(
                fault="external_data",
                cause=f"the weights in '{one_line(place)}' {why}",
                fix="put the file beside the model and name it without a folder, or export again",
                fixable=False,
            )
    return None


def find_invalid(clues: Clues) -> Finding | None:
    """Ask ONNX's checker, after a look at sizes that it would believe."""
    complaint = _absurd(clues.proto)
    if not complaint:
        try:
            onnx.checker.check_model(os.fspath(clues.path), full_check=True)
        except MemoryError:
            raise
        except Exception as error:  # ValidationError, InferenceError and others without a common base
            complaint = f"ONNX's checker refuses it: {one_line(error)}"
    if not complaint:
        return None
    return Finding(
        fault="invalid_model", cause=complaint, fix="the file is damaged or wrong: export it again", fixable=False
    )


def _out_of_reach(place: str, folder: Path) -> str:
    if PurePosixPath(place).is_absolute() or PureWindowsPath(place).is_absolute():
        return "have an absolute path: a model could read any file of this machine"
    try:
        target = (folder / place).resolve()
        if not target.is_relative_to(folder):
            return "lie outside the model's folder: a model could read any file of this machine"
        return "" if target.is_file() else "are missing"
    except (OSError, ValueError) as error:  # a name that no file can have
        return f"cannot be a file ({one_line(error)})"


def _absurd(proto: onnx.ModelProto) -> str:
    """Tell of a stored tensor that claims far more values than the file holds."""
    for tensor in stored_tensors(proto.graph):
        values = math.prod(tensor.dims)
        if values > MAX_TENSOR_BYTES or any(dim < 0 for dim in tensor.dims):
            return f"the tensor '{one_line(tensor.name)}' claims the shape {list(tensor.dims)[:6]}"
    return ""
