"""What the last operators of a graph, the names and the values of an output say about its meaning."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.signature import BoxDecoding, Task
from gauntlet.metrics.error_metrics import within_unit

if TYPE_CHECKING:
    import onnx

Size = tuple[int, int]
"""Height and width, in pixels."""
PASSED = ("Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Dropout")
PASSED_QUANTIZED = ("QuantizeLinear", "DequantizeLinear")
"""Operators that change an output's form, type or precision, and not its meaning."""
CLASSIFIERS = ("TreeEnsembleClassifier", "LinearClassifier", "SVMClassifier")
SOFTMAX = ("Softmax", "LogSoftmax", *CLASSIFIERS)
PRODUCTS = ("Gemm", "MatMul", "Add", "Conv", "GlobalAveragePool", "ReduceMean", "AveragePool", "")
"""Last operators of scores without a softmax; unknown for a framework's model."""
EMBEDDING_STEP = 64
"""Sizes that are multiples of it are those of vectors, not numbers of classes."""
CLASS_NAMES = re.compile(r"logits?|probs?|probabilit(y|ies)|softmax|class(es|_?scores|_?probs)?", re.IGNORECASE)
MIN_SAMPLES = 16
"""For a statement about how values vary from sample to sample."""
SUM_TOLERANCE = 2e-3
"""Of a row of probabilities, or of a vector's length, in half precision too."""
LARGEST_SUM_SPREAD = 0.5
"""See `trained_by_softmax`."""


def last_operator(graph: "onnx.GraphProto | None", output: str) -> str:
    """Return the type of the operator that computes an output; an empty text where it is unknown."""
    made_by = {name: node for node in graph.node for name in node.output} if graph else {}
    node = made_by.get(output)
    while node is not None and node.op_type in (*PASSED, *PASSED_QUANTIZED):
        node = made_by.get(node.input[0])
    return node.op_type if node is not None else ""


def is_named(output: str, pattern: re.Pattern[str]) -> bool:
    """Return whether a name, without the framework's prefix or number (`model/dense/probs:0`), fits a pattern."""
    return pattern.fullmatch(re.split(r"[/.]", output.partition(":")[0])[-1].strip("_0123456789")) is not None


def sums_to_one(values: Array, axis: int = 1) -> bool:
    """Return whether values are probabilities along an axis, or the logarithms of such."""
    wide = values.astype(np.float64)
    if not wide.size or not np.isfinite(wide).all():
        return False
    if wide.max() <= SUM_TOLERANCE and wide.min() < 0:
        wide = np.exp(wide)
    return bool(wide.min() >= -SUM_TOLERANCE and np.all(np.abs(wide.sum(axis=axis) - 1) < SUM_TOLERANCE))


def trained_by_softmax(scores: Array) -> bool:
    """Return whether scores, shape (n, classes), are logits of a softmax, judged by how little their sums vary.

    The gradient of the cross-entropy of a softmax with respect to the logits of a sample sums to 0, so that training
    does not move their sum. Independent numbers vary as a sum as much as they do alone: their ratio is 1. Measured on
    digits, held-out samples: 0.01 to 0.43 for networks of 2, 3 and 10 classes (SGD, Adam and AdamW), 0.7 to 1.0 before
    the training, 0.8 to 1.7 for regressions of 2, 4 and 5 values and 0.9 for an autoencoder.
    """
    wide = scores.astype(np.float64)
    if len(wide) < MIN_SAMPLES or not np.isfinite(wide).all():
        return False
    alone = wide.var(axis=0).sum()
    return bool(alone > 0 and np.sqrt(wide.sum(axis=1).var() / alone) < LARGEST_SUM_SPREAD)


def are_decided(values: Array) -> bool:
    """Return whether values from 0 to 1 are decisions: nearly all close to 0 or to 1, and some to each.

    The outputs of a trained sigmoid per class or pixel are; a number that a sigmoid keeps within bounds is not.
    """
    wide = values.astype(np.float64)
    middle, high = np.mean((wide > 0.1) & (wide < 0.9)), np.mean(wide >= 0.5)
    return bool(within_unit(wide) and middle < 0.3 and 0.002 <= high < 1)


def is_reconstruction(output: Array, inputs: NamedArrays) -> bool:
    """Return whether an output has the size of an input, or is an image of as many channels as one."""
    shapes = [array.shape[1:] for array in inputs.values() if array.dtype.kind == "f"]
    if output.ndim == 4 and any(
        len(shape) == 3 and _channels(shape) == _channels(output.shape[1:]) for shape in shapes
    ):
        return True
    size = output[0].size if len(output) else 0
    return size > 1 and any(size == int(np.prod(shape)) for shape in shapes)


def class_twin(scores: Array, outputs: NamedArrays) -> str | None:
    """Return the output with the class that has the highest score of each sample, shape (n,) or (n, 1)."""
    best = scores.argmax(axis=1)
    if len(np.unique(best)) < 2:
        return None
    whole = (name for name, array in outputs.items() if array.dtype.kind in "iu" and array.size == len(best))
    return next((name for name in whole if np.array_equal(outputs[name].ravel(), best)), None)


def read_by(graph: "onnx.GraphProto | None", output: str, operators: Collection[str]) -> bool:
    """Return whether an operator of these types reads an output."""
    return graph is not None and any(output in node.input and node.op_type in operators for node in graph.node)


def _channels(shape: tuple[int, ...]) -> int:
    """Return the channels of an image: the axis that is shorter than both others, or else the first."""
    return shape[2] if shape[2] < min(shape[:2]) else shape[0]


@dataclass(frozen=True)
class InferredProblem:
    """What a model's outputs mean, as `gauntlet.core.signature.Signature` describes it, and why."""

    task: Task
    reason: str
    primary_output: str | None = None
    decode: BoxDecoding | None = None
    labels: tuple[str, ...] = ()
    """Numbers, or placeholder characters, where the problem needs a name for each class."""
    min_classes: int = 0
    """Of a detector that does not limit them: as many as the samples show."""


@dataclass(frozen=True)
class Evidence:
    """A model's outputs, shape (n, ...), for inputs of samples, and what else is known of it.

    `real` tells whether the samples are; `classes` is the number of classes that have names, or 0.
    """

    inputs: NamedArrays
    outputs: NamedArrays
    graph: "onnx.GraphProto | None"
    real: bool
    classes: int

    @cached_property
    def floats(self) -> NamedArrays:
        """The outputs that are finite floats and no reconstruction of an input."""
        return {
            name: array
            for name, array in self.outputs.items()
            if array.dtype.kind == "f" and np.isfinite(array).all() and not is_reconstruction(array, self.inputs)
        }

    @property
    def rows(self) -> NamedArrays:
        """The float outputs with several numbers a sample, shape (n, k)."""
        return {name: array for name, array in self.floats.items() if array.ndim == 2 and array.shape[1] > 1}

    @property
    def image_axes(self) -> tuple[int, int, int] | None:
        """Axes of the channels, the rows and the columns of the first input; None where it is no image."""
        first = next(iter(self.inputs.values()))
        if first.ndim != 4 or first.dtype.kind not in "fu":
            return None
        layouts = ((1, 2, 3), (3, 1, 2))
        return next((axes for axes in layouts if first.shape[axes[0]] in (1, 3)), None)

    @property
    def image_size(self) -> Size | None:
        """Height and width of the first input; None where it is no image."""
        if self.image_axes is None:
            return None
        first = next(iter(self.inputs.values()))
        return first.shape[self.image_axes[1]], first.shape[self.image_axes[2]]

    def last(self, output: str) -> str:
        """Return the type of the operator that computes an output."""
        return last_operator(self.graph, output)
