"""What is watched of each sample: a few numbers of its input and of its output."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.ragged import is_ragged, without_padding
from gauntlet.core.signature import IMAGE_SCALE, Signature
from gauntlet.metrics.confidence_calibration import class_probabilities
from gauntlet.problems import problem_of
from gauntlet.problems.base import Floats
from gauntlet.problems.classification import Classification
from gauntlet.request_log.embeddings import DISTANCE

IMAGE = ("brightness", "contrast", "sharpness")
COLOR = "colorfulness"
TENSOR = ("input mean", "input deviation")
OUTPUT = ("output mean", "output deviation")
PREDICTED, CONFIDENCE = "predicted class", "confidence"

DESCRIPTIONS: Mapping[str, str] = {
    "brightness": "mean of an image's pixels, 0 to 1",
    "contrast": "standard deviation of an image's pixels",
    "sharpness": "mean difference of neighboring pixels",
    "colorfulness": "mean difference between the largest and the smallest channel",
    "input mean": "mean of the first input",
    "input deviation": "standard deviation of the first input",
    "predicted class": "index of the class with the highest score",
    "confidence": "softmax of the highest score, not calibrated",
    "output mean": "mean of the primary output",
    "output deviation": "standard deviation of the primary output",
    DISTANCE: "distance of what the last layer takes from the evaluation's, in units of its covariance",
}


def input_names(signature: Signature) -> tuple[str, ...]:
    """Return what `input_statistics` computes for this model, in its order."""
    if _takes_images(signature):
        assert signature.preprocessing is not None
        return (*IMAGE, COLOR) if len(signature.preprocessing.mean) >= 3 else IMAGE
    return () if signature.inputs[0].dtype == "str" else TENSOR


def feature_names(signature: Signature) -> tuple[str, ...]:
    """Return the names of all that is watched: first of the inputs, then of the outputs."""
    if not isinstance(problem_of(signature), Classification):
        return (*input_names(signature), *OUTPUT)
    scores = len(_primary_shape(signature)) > 1
    return (*input_names(signature), PREDICTED, *((CONFIDENCE,) if scores else ()))


def input_statistics(inputs: NamedArrays, signature: Signature) -> Floats:
    """Return statistics of each sample's input, shape (n, k); images are measured as they were before normalization."""
    array = inputs[signature.inputs[0].name]
    if not input_names(signature):
        return np.empty((len(array), 0))
    if not _takes_images(signature):
        return _moments(array)
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


def output_features(outputs: NamedArrays, signature: Signature) -> Floats:
    """Return features of each sample's output, shape (n, k)."""
    problem = problem_of(signature)
    output = outputs[problem.primary_output]
    if not isinstance(problem, Classification):
        return _moments(output)
    classes = problem.predictions(output)
    predicted = np.full(len(output), np.nan) if classes is None else classes.astype(np.float64)
    if len(_primary_shape(signature)) < 2:
        return predicted[:, None]
    confidence = class_probabilities(problem.class_scores(output).reshape(len(output), -1)).max(axis=1)
    return np.stack([predicted, confidence], axis=1)


def are_broken(
    outputs: NamedArrays, inputs: NamedArrays | None, statistics: Array | None, names: Sequence[str], count: int
) -> Floats:
    """Return 1 for each of `count` samples with a named output that is not finite, although the input is known to be.

    Where the log keeps nothing of the inputs, they count as finite.
    """
    known = [statistics] if statistics is not None else list((inputs or {}).values())
    known_finite = _finite(known, count)
    return np.asarray(known_finite & ~_finite([outputs[name] for name in names if name in outputs], count), np.float64)


def _finite(arrays: Iterable[Array], count: int) -> npt.NDArray[np.bool_]:
    """Return for which samples all floats are finite; an array without an entry per sample is left out."""
    finite = np.ones(count, np.bool_)
    for array in arrays:
        if array.dtype.kind == "f" and len(array) == count:
            finite &= np.isfinite(array.reshape(count, -1)).all(axis=1)
    return finite


def _takes_images(signature: Signature) -> bool:
    how = signature.preprocessing
    return how is not None and how.hog is None and len(signature.inputs) == 1 and len(signature.inputs[0].shape) == 4


def _primary_shape(signature: Signature) -> tuple[int | str, ...]:
    primary = signature.primary_output or signature.outputs[0].name
    return next(spec.shape for spec in signature.outputs if spec.name == primary)


def _moments(array: Array) -> Floats:
    """Return each sample's mean and standard deviation, shape (n, 2); NaN where there are no numbers."""
    if array.dtype.kind not in "fiub":
        return np.full((len(array), 2), np.nan)
    if is_ragged(array):
        own = [without_padding(sample).astype(np.float64) for sample in array]
        return np.array([[sample.mean(), sample.std()] if sample.size else [np.nan] * 2 for sample in own])
    values = array.reshape(len(array), -1).astype(np.float64)
    return np.stack([values.mean(axis=1), values.std(axis=1)], axis=1)
