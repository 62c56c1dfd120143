"""Inputs that callers keep constant become part of the model."""

from collections.abc import Mapping
from contextlib import suppress

import numpy as np
import onnx
from onnx import helper, numpy_helper

from gauntlet.core.arrays import Array, fits_shape
from gauntlet.core.errors import ConfigError
from gauntlet.onnx_model.graph import format_type, tensor_shape

InputValue = bool | int | float | str | tuple[bool | int | float | str, ...]
"""A scalar, or the values of a tensor in C order."""


def fix_inputs(proto: onnx.ModelProto, values: Mapping[str, InputValue]) -> str:
    """Replace inputs by initializers; `ConfigError` when an input is unknown or the value does not fit it."""
    graph, done = proto.graph, list[str]()
    for name, value in values.items():
        declared = find_input(graph, name)
        array = input_array(declared, value)
        graph.input.remove(declared)
        for default in [tensor for tensor in graph.initializer if tensor.name == name]:
            graph.initializer.remove(default)
        graph.initializer.append(numpy_helper.from_array(array, name))
        done.append(f"'{name}' is now {value}")
    proto.ir_version = max(proto.ir_version, 4) if done else proto.ir_version  # before, initializers are inputs too
    return "; ".join(done)


def find_input(graph: onnx.GraphProto, name: str) -> onnx.ValueInfoProto:
    """Return an input by name; `ConfigError` when there is none."""
    declared: onnx.ValueInfoProto | None = next((value for value in graph.input if value.name == name), None)
    if declared is not None:
        return declared
    available = ", ".join(f"'{value.name}'" for value in graph.input) or "none"
    raise ConfigError(f"normalize.fix_inputs: the model has no input '{name}'; available: {available}")


def input_array(declared: onnx.ValueInfoProto, value: InputValue) -> Array:
    """Return the value as an array of the input's type and shape; `ConfigError` when it does not fit."""
    raw, shape = np.asarray(value), tensor_shape(declared)
    with suppress(KeyError, OverflowError, ValueError), np.errstate(over="ignore", invalid="ignore"):
        dtype = helper.tensor_dtype_to_np_dtype(declared.type.tensor_type.elem_type)  # KeyError: no tensor
        array = raw.astype(dtype)
        fixed = None if shape is None else [axis if isinstance(axis, int) else 1 for axis in shape]
        if fixed is not None and array.size == np.prod(fixed):
            array = array.reshape(fixed)
        same = array.ravel() == raw.ravel()
        if dtype.kind == "f":  # rounded, but finite where the value is
            same |= np.isfinite(array.ravel()) | ~np.isfinite(raw.ravel().astype(np.float64))
        elif dtype.kind == "O":
            same = np.asarray(raw.dtype.kind in "US")
        if np.all(same) and (shape is None or fits_shape(array.shape, shape)):
            return array
    raise ConfigError(
        f"normalize.fix_inputs.{declared.name}: {value} does not fit the input, {format_type(declared)}; give a "
        "value of this type, or a list of its elements"
    )
