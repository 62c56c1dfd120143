"""Random inputs for a model file."""

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
    """Return `samples` samples for every input, as `gauntlet.runtime.batched_inference` takes them.

    `shapes` sets the shape of one sample, by input, where the file leaves more than the batch open.

    Raises:
        ConfigError: if a shape is open, or one is given for an unknown input.
        StageError: if the file is not a model, or an input has no random values.
    """
    shapes = shapes or {}
    values = required_inputs(read_untrusted_graph(model).graph)
    names = [value.name for value in values]
    unknown = [name for name in shapes if name not in names]
    if unknown:
        raise ConfigError(f"--shape {unknown[0]}: unknown input; available: {', '.join(names)}")
    known = {value.name: tensor_shape(value) for value in values}
    firsts = {shape[0] for shape in known.values() if shape and isinstance(shape[0], int)}
    # Without a batch axis that all inputs share, each sample is a full input.
    skipped_axes = 0 if len(firsts) > 1 or any(shape == () for shape in known.values()) else 1
    rng = np.random.default_rng(seed)
    inputs = {}
    for value in values:
        name = value.name
        shape = shapes[name] if name in shapes else _sample_shape(name, known[name], skipped_axes)
        inputs[name] = _values(value, (samples, *shape), rng)
    return inputs


def _sample_shape(name: str, shape: tuple[int | str | None, ...] | None, skipped_axes: int) -> tuple[int, ...]:
    axes = None if shape is None else shape[skipped_axes:]
    if axes is None or not all(isinstance(axis, int) for axis in axes):
        raise ConfigError(
            f"the input {name!r} is {format_shape(shape)}, which leaves the shape of a sample open. "
            f"Fix: set it with --shape {name}=3x224x224, or give real samples with --inputs FILE.npz"
        )
    return tuple(axis for axis in axes if isinstance(axis, int))


def _values(value: onnx.ValueInfoProto, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    element_type = value.type.tensor_type.elem_type
    if element_type == onnx.TensorProto.STRING:
        return np.full(shape, "a")
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(element_type)
    except KeyError as error:
        raise StageError(f"the input {value.name!r} is not a tensor. Fix: use --inputs FILE.npz") from error
    if math.prod(shape) > 2**31:
        raise ConfigError(f"the input {value.name!r} would have {math.prod(shape):.2g} values. Fix: lower --batch")
    try:
        return random_values(dtype, shape, rng)
    except ValueError as error:
        raise StageError(f"the input {value.name!r}: {error}. Fix: give samples with --inputs FILE.npz") from error
