"""What is watched of each sample's input: a few numbers, which the log keeps where it keeps no inputs."""

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, Floats, NamedArrays
from gauntlet.core.ragged import is_ragged, without_padding
from gauntlet.core.signature import IMAGE_SCALE, Signature

IMAGE = ("brightness", "contrast", "sharpness")
COLOR = "colorfulness"
TENSOR = ("input mean", "input deviation")


def input_names(signature: Signature) -> tuple[str, ...]:
    """Return what `input_statistics` computes for this model, in its order."""
    if _takes_images(signature):
        assert signature.preprocessing is not None
        return (*IMAGE, COLOR) if len(signature.preprocessing.mean) >= 3 else IMAGE
    return () if signature.inputs[0].dtype == "str" else TENSOR


def input_statistics(inputs: NamedArrays, signature: Signature) -> Floats:
    """Return statistics of each sample's input, shape (n, k); images are measured as they were before normalization."""
    array = inputs[signature.inputs[0].name]
    if not input_names(signature):
        return np.empty((len(array), 0))
    if not _takes_images(signature):
        return moments(array)
    how = signature.preprocessing
    assert how is not None
    channel, *sides = (1, 2, 3) if signature.layout == "NCHW" else (3, 1, 2)  # as it lies in memory: faster
    shape = [-1 if axis == channel else 1 for axis in range(4)]
    if how.in_graph:
        pixels = array.astype(np.float32) * np.float32(IMAGE_SCALE)
    else:
        std, mean = (np.asarray(values, np.float32).reshape(shape) for values in (how.std, how.mean))
        pixels = array.astype(np.float32, copy=False) * std + mean
    flat = pixels.reshape(len(pixels), -1)
    sharpness = (_mean_step(pixels, sides[0]) + _mean_step(pixels, sides[1])) / 2
    statistics = [flat.mean(axis=1), flat.std(axis=1), sharpness]
    if len(how.mean) >= 3:
        statistics.append((pixels.max(axis=channel) - pixels.min(axis=channel)).mean(axis=(1, 2)))
    return np.stack(statistics, axis=1).astype(np.float64)


def _mean_step(pixels: npt.NDArray[np.floating], axis: int) -> npt.NDArray[np.floating]:
    """Return the mean difference of neighbors along an axis, shape (n,); 0 where there is one pixel alone."""
    steps = np.diff(pixels, axis=axis)
    if not steps.size:
        return np.zeros(len(pixels))
    return np.asarray(np.abs(steps, out=steps).reshape(len(pixels), -1).mean(axis=1))


def moments(array: Array) -> Floats:
    """Return each sample's mean and standard deviation, shape (n, 2); NaN where there are no numbers."""
    if array.dtype.kind not in "fiub":
        return np.full((len(array), 2), np.nan)
    if is_ragged(array):
        own = [without_padding(sample).astype(np.float64) for sample in array]
        return np.array([[sample.mean(), sample.std()] if sample.size else [np.nan] * 2 for sample in own])
    values = array.reshape(len(array), -1).astype(np.float64)
    return np.stack([values.mean(axis=1), values.std(axis=1)], axis=1)


def _takes_images(signature: Signature) -> bool:
    how = signature.preprocessing
    return how is not None and how.hog is None and len(signature.inputs) == 1 and len(signature.inputs[0].shape) == 4
