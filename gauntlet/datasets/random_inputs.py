"""Inputs for a model of which nothing is known but its file."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from gauntlet.core.arrays import Array, NamedArrays, random_values
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.onnx_model.graph import format_shape, read_untrusted_graph, required_inputs, tensor_shape


def random_inputs(
    model: Path, samples: int, shapes: Mapping[str, tuple[int, ...]] | None = None, seed: int = 0
) -> NamedArrays:
    """Return samples for every input, in the form of `gauntlet.runtime.batched_inference`.

    Args:
        model: an ONNX file.
        samples: how many; each array has so many rows.
        shapes: of one sample, by input, where the file leaves more than the batch open.
        seed: of the values.

    Raises:
        ConfigError: when a shape is open, or one is given for an input that there is not.
        StageError: when the file is no model, or an input cannot be made up.
    """
    shapes = shapes or {}
    values = required_inputs(read_untrusted_graph(model).graph)
    strangers = [name for name in shapes if name not in {value.name for value in values}]
    if strangers:
        raise ConfigError(f"--shape {strangers[0]}: no such input; there are: {', '.join(v.name for v in values)}")
    known = {value.name: tensor_shape(value) for value in values}
    firsts = {shape[0] for shape in known.values() if shape and isinstance(shape[0], int)}
    # Without a batch axis that all inputs share, each sample is a whole input.
    whole = len(firsts) > 1 or any(shape == () for shape in known.values())
    source = np.random.default_rng(seed)
    return {
        value.name: _values(value, (samples, *_sample(value.name, known[value.name], shapes, whole)), source)
        for value in values
    }


def _sample(
    name: str, shape: tuple[int | str | None, ...] | None, shapes: Mapping[str, tuple[int, ...]], whole: bool
) -> tuple[int, ...]:
    if name in shapes:
        return shapes[name]
    rest = shape if whole else None if shape is None else shape[1:]
    if rest is None or not all(isinstance(axis, int) for axis in rest):
        raise ConfigError(
            f"the input {name!r} is {format_shape(shape)}, which leaves the shape of a sample open; "
            f"give it with --shape {name}=3x224x224, or real samples with --inputs FILE.npz"
        )
    return tuple(axis for axis in rest if isinstance(axis, int))


def _values(value: onnx.ValueInfoProto, shape: tuple[int, ...], source: np.random.Generator) -> Array:
    kind = value.type.tensor_type.elem_type
    if kind == onnx.TensorProto.STRING:
        return np.full(shape, "a")
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    except KeyError as error:
        raise StageError(f"the input {value.name!r} is no tensor; give samples with --inputs FILE.npz") from error
    if math.prod(shape) > 2**31:
        raise ConfigError(f"the input {value.name!r} would have {math.prod(shape):.2g} values; take a smaller --batch")
    try:
        return random_values(dtype, shape, source)
    except ValueError as error:
        raise StageError(f"the input {value.name!r}: {error}; give --inputs") from error
