"""Faults of the file itself: unreachable external data, and models that ONNX's checker rejects."""

import math
from pathlib import Path

import onnx

from gauntlet.core.errors import one_line
from gauntlet.onnx_model.model_file import checker_error, external_locations, is_absolute_location, stored_tensors
from wings.inspection.library.diagnosis.context import ModelContext
from wings.inspection.library.diagnosis.findings import Finding

MAX_TENSOR_BYTES = 1 << 40


def find_external(context: ModelContext) -> Finding | None:
    """Check for external data outside the model's folder, without opening any file."""
    folder = context.path.resolve().parent
    for location in external_locations(context.proto):
        if problem := _out_of_reach(location, folder):
            cause = f"the weights in '{one_line(location)}' {problem}"
            fix = "move the file into the model's folder and refer to it by name alone, or export the model again"
            return Finding(fault="external_data", cause=cause, fix=fix, fixable=False)
    return None


def find_invalid(context: ModelContext) -> Finding | None:
    """Run ONNX's checker, after rejecting absurd tensor sizes that it would accept."""
    problem = _absurd(context.proto)
    if not problem and (error := checker_error(context.path)):
        problem = f"ONNX's checker rejects it: {error}"
    fix = "the file is damaged or invalid: export the model again"
    return Finding(fault="invalid_model", cause=problem, fix=fix, fixable=False) if problem else None


def _out_of_reach(location: str, folder: Path) -> str:
    if is_absolute_location(location):
        return "have an absolute path: the model could read any file on this machine"
    try:
        target = (folder / location).resolve()
        if not target.is_relative_to(folder):
            return "are outside the model's folder: the model could read any file on this machine"
        return "" if target.is_file() else "are missing"
    except (OSError, ValueError) as error:  # an invalid file name
        return f"have an invalid file name ({one_line(error)})"


def _absurd(proto: onnx.ModelProto) -> str:
    """Describe a stored tensor with an impossible shape, or return ''."""
    for tensor in stored_tensors(proto):
        values = math.prod(tensor.dims)
        if values > MAX_TENSOR_BYTES or any(dim < 0 for dim in tensor.dims):
            return f"the tensor '{one_line(tensor.name)}' declares the impossible shape {list(tensor.dims)[:6]}"
    return ""
