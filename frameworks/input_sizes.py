"""Golden inputs at image sizes other than the data's, and the dynamic axes that they need."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from gauntlet.core.arrays import Array, NamedArrays, dtype_name
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.splits import Split

Length = Annotated[int, Field(ge=1, le=4096)]
InputSizes = Annotated[
    tuple[tuple[Length, Length], ...],
    Field(description="further [height, width] in pixels, which makes both axes dynamic"),
]

SAMPLES = 16


def resized_samples(test: Split, sizes: InputSizes, signature: Signature) -> dict[str, NamedArrays]:
    """Return the first test images, resized by nearest neighbor: case name, for example `48x40`, -> inputs."""
    if not sizes:
        return {}
    images = _image_inputs(signature)
    real = test.take(slice(0, SAMPLES))
    return {
        f"{height}x{width}": {
            name: _resized(array, height, width, signature.layout) if name in images else array
            for name, array in real.items()
        }
        for height, width in sizes
    }


def with_dynamic_size(signature: Signature) -> Signature:
    """Return the signature with the image axes named `height` and `width`, so dynamic, instead of fixed."""
    images = _image_inputs(signature)

    def dynamic(spec: TensorSpec) -> TensorSpec:
        batch, *rest = spec.shape
        named = (rest[0], "height", "width") if signature.layout == "NCHW" else ("height", "width", rest[2])
        return spec.replace(shape=(batch, *named))

    return signature.replace(inputs=tuple(dynamic(spec) if spec.name in images else spec for spec in signature.inputs))


def outputs_of(golden: Golden) -> tuple[TensorSpec, ...]:
    """Return the specs of the outputs: an axis whose length differs between input sizes is dynamic."""
    outputs = golden.test_outputs.items()
    return tuple(TensorSpec(name=n, dtype=dtype_name(array), shape=axes_of(n, golden)) for n, array in outputs)


def axes_of(name: str, golden: Golden) -> tuple[int | str, ...]:
    """Return the axes of an output for many samples; one whose length differs between the cases has a name."""
    shapes = [case.outputs[name].shape for case in golden.cases.values()]
    lengths = [set(axis) for axis in zip(*(shape[1:] for shape in shapes), strict=True)]
    axes = [min(seen) if len(seen) == 1 else f"{name}_{index}" for index, seen in enumerate(lengths, start=1)]
    return ("batch", *axes)


def with_open_axes(outputs: Sequence[TensorSpec], golden: Golden) -> tuple[TensorSpec, ...]:
    """Return the specs of outputs with a name for each axis whose length differs between the golden cases."""
    specs = []
    for spec in outputs:
        _, *axes = axes_of(spec.name, golden)
        specs.append(spec.replace(shape=(*spec.shape[: len(spec.shape) - len(axes)], *axes)))
    return tuple(specs)


def _image_inputs(signature: Signature) -> set[str]:
    names = {spec.name for spec in signature.inputs if len(spec.shape) == 4 and signature.layout != "none"}
    if not names:
        shapes = {spec.name: spec.shape for spec in signature.inputs}
        actual = f"layout {signature.layout}, shapes {shapes}"
        raise StageError(f"train.input_sizes: no input is an image ({actual}). Fix: remove input_sizes")
    return names


def _resized(array: Array, height: int, width: int, layout: str) -> Array:
    """Resize images by nearest neighbor."""
    first = 2 if layout == "NCHW" else 1
    for axis, length in ((first, height), (first + 1, width)):
        array = array.take(((np.arange(length) + 0.5) * array.shape[axis] / length).astype(np.intp), axis)
    return array
