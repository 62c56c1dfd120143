"""What is watched of each sample: a few numbers of its input and of its output."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from gauntlet.core.arrays import Array, Floats, NamedArrays
from gauntlet.core.signature import Signature
from gauntlet.metrics.confidence_calibration import class_probabilities
from gauntlet.problems import problem_of
from gauntlet.problems.classification import Classification
from gauntlet.request_log.input_statistics import input_names, moments
from wings.lifecycle.library.monitoring.embeddings import DISTANCE

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


def feature_names(signature: Signature) -> tuple[str, ...]:
    """Return the names of all that is watched: first of the inputs, then of the outputs."""
    if not isinstance(problem_of(signature), Classification):
        return (*input_names(signature), *OUTPUT)
    scores = len(_primary_shape(signature)) > 1
    return (*input_names(signature), PREDICTED, *((CONFIDENCE,) if scores else ()))


def output_features(outputs: NamedArrays, signature: Signature) -> Floats:
    """Return features of each sample's output, shape (n, k)."""
    problem = problem_of(signature)
    output = outputs[problem.primary_output]
    if not isinstance(problem, Classification):
        return moments(output)
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


def _primary_shape(signature: Signature) -> tuple[int | str, ...]:
    primary = signature.primary_output or signature.outputs[0].name
    return next(spec.shape for spec in signature.outputs if spec.name == primary)
