"""Pictures of other sizes: what a model that takes them is asked besides the pictures of its training."""

from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tasks.data.dataset import Arrays, Split
from tasks.data.golden import Golden
from tasks.errors import StageError
from tasks.signature import Signature, TensorSpec

Length = Annotated[int, Field(ge=1, le=4096)]
Sizes = tuple[tuple[Length, Length], ...]
"""Heights and widths, in pixels."""

SAMPLES = 16
DESCRIPTION = "[height, width] pairs besides the data's own; with any, both axes are dynamic, and each size is compared"
BROUGHT = "[height, width] pairs besides the data's own, for a model that takes pictures of any size; each is compared"


def at_other_sizes(test: Split, sizes: Sizes, signature: Signature) -> dict[str, Arrays]:
    """Return the first test pictures at other sizes (nearest pixels), by the name of their case: `48x40`.

    Raises:
        StageError: when there are sizes, and no input is a picture.
    """
    if not sizes:
        return {}
    pictures = _pictures(signature)
    real = test.take(slice(0, SAMPLES))
    return {
        f"{height}x{width}": {
            name: _resized(array, height, width, signature.layout) if name in pictures else array
            for name, array in real.items()
        }
        for height, width in sizes
    }


def with_dynamic_size(signature: Signature) -> Signature:
    """Return the signature with the names `height` and `width` in place of the numbers."""
    pictures = _pictures(signature)

    def dynamic(spec: TensorSpec) -> TensorSpec:
        batch, *rest = spec.shape
        named = (rest[0], "height", "width") if signature.layout == "NCHW" else ("height", "width", rest[2])
        return spec.replace(shape=(batch, *named))

    inputs = tuple(dynamic(spec) if spec.name in pictures else spec for spec in signature.inputs)
    return signature.replace(inputs=inputs)


def outputs_of(golden: Golden) -> tuple[TensorSpec, ...]:
    """Return what the answers say of the outputs: an axis whose length differs between sizes is a named one."""
    cases = golden.cases.values()
    return tuple(
        TensorSpec(name=name, dtype=array.dtype.name, shape=_axes(name, [c.outputs[name].shape for c in cases]))
        for name, array in golden.answers.items()
    )


def _axes(name: str, shapes: list[tuple[int, ...]]) -> tuple[int | str, ...]:
    lengths = [set(axis) for axis in zip(*(shape[1:] for shape in shapes), strict=True)]
    axes = [min(found) if len(found) == 1 else f"{name}_{place}" for place, found in enumerate(lengths, start=1)]
    return ("batch", *axes)


def _pictures(signature: Signature) -> set[str]:
    found = {spec.name for spec in signature.inputs if len(spec.shape) == 4 and signature.layout != "none"}
    if not found:
        shapes = {spec.name: spec.shape for spec in signature.inputs}
        raise StageError(
            f"train.sizes: no input is a picture (layout {signature.layout}, shapes {shapes}); leave it out"
        )
    return found


def _resized(array: npt.NDArray[np.generic], height: int, width: int, layout: str) -> npt.NDArray[np.generic]:
    """Return the pictures with each pixel taken from the nearest place."""
    first = 2 if layout == "NCHW" else 1
    for axis, length in ((first, height), (first + 1, width)):
        places = ((np.arange(length) + 0.5) * array.shape[axis] / length).astype(np.intp)
        array = array.take(places, axis)
    return array
