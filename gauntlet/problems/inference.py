"""Infer what a model's outputs mean, from its graph and from its outputs for some samples."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.kinds import kinds, removed
from gauntlet.core.signature import Task
from gauntlet.metrics.error_metrics import within_unit
from gauntlet.problems.output_evidence import (
    CLASS_NAMES,
    EMBEDDING_STEP,
    PRODUCTS,
    SOFTMAX,
    Evidence,
    InferredProblem,
    class_twin,
    is_named,
    is_reconstruction,
    read_by,
    sums_to_one,
    trained_by_softmax,
)

if TYPE_CHECKING:
    import onnx

Infer = Callable[[Evidence, bool], Iterator[InferredProblem]]
"""From the evidence, and whether the problem is certain, to what the outputs mean, the likeliest output first."""

KNOWN_CLASSES = (100, 365, 1000, 1001, 21841, 21843)
"""Of CIFAR-100, Places365 and ImageNet: an image that becomes so many numbers is classified."""
CIFAR_10 = 10
"""As many as five landmarks have coordinates: believed where there are no real samples to tell."""


def infer_problem(
    inputs: NamedArrays,
    outputs: NamedArrays,
    graph: "onnx.GraphProto | None" = None,
    *,
    task: Task | None = None,
    classes: int = 0,
    real: bool = True,
) -> InferredProblem:
    """Return what a model's outputs for some samples mean; `arrays` where the evidence does not decide.

    Outputs that are numbers get no argmax: a candidate that changes which of three scores is the highest is not wrong.
    Wrongly taken for `arrays`, a model is held to a stricter limit of noise; wrongly taken for a classifier, it is
    judged by something that means nothing. So an image that becomes k numbers is a classifier only with proof.

    Args:
        inputs: samples by input, shape (n, ...), in the order of the model's inputs; at least 16 for every rule.
        outputs: of the source model for them, by name, shape (n, ...).
        graph: of an ONNX model; None for a framework's.
        task: what the outputs mean, where that is known; then only the rest is inferred.
        classes: how many classes have names; 0 where none has.
        real: whether the samples are real. Of random ones, only what holds for every input is believed.

    Raises:
        StageError: when the outputs do not fit `task`.
    """
    known = Evidence(inputs, outputs, graph, real, classes)
    tasks: dict[str, Infer] = {**TASKS, **kinds("inference")}
    if task is not None:
        if task not in tasks:
            raise StageError(f"nothing is installed that knows the task {task}. {removed(f'inference.{task}')}")
        if (named := next(tasks[task](known, True), None)) is None:
            shapes = ", ".join(f"{name} {array.dtype}{['n', *array.shape[1:]]}" for name, array in outputs.items())
            raise StageError(f"no output has the form of the problem {task}: {shapes}")
        return named
    inferred = (problem for kind in ORDER if kind in tasks for problem in tasks[kind](known, False))
    return next(inferred, InferredProblem("arrays", _undecided(known)))


def _undecided(known: Evidence) -> str:
    """Return why the outputs are compared as arrays."""
    copies = [name for name, array in known.outputs.items() if is_reconstruction(array, known.inputs)]
    if copies:
        return f"{copies[0]} has the size or the channels of an input"
    reasons: Iterable[str] = (explain(known) for explain in kinds("undecided").values())
    if reason := next(filter(None, reasons), ""):
        return reason
    return "neither the graph nor the values say more" if known.real else "random samples say little"


def _classification(known: Evidence, certain: bool) -> Iterator[InferredProblem]:
    for name, scores in known.outputs.items():
        if scores.dtype.kind != "f" or scores.ndim != 2 or scores.shape[1] < 2:
            continue
        if reason := _why_classes(known, name, scores):
            yield InferredProblem("classification", f"{name} [n, {scores.shape[1]}] {reason}", name)
    for name, array in known.outputs.items():
        if array.dtype.kind in "iu" and array.size == len(array) and known.last(name) == "ArgMax":
            yield InferredProblem("classification", f"{name} is computed by ArgMax", name)
    if certain:
        for name, array in known.floats.items():
            if array.size == len(array) and within_unit(array):
                yield InferredProblem(
                    "classification", f"{name} holds the probability of the second of two classes", name
                )
        possible = [*known.rows, *(n for n, a in known.outputs.items() if a.dtype.kind in "iu" and a.size == len(a))]
        yield from (InferredProblem("classification", f"{name}, as requested", name) for name in possible)


def _why_classes(known: Evidence, name: str, scores: Array) -> str:
    """Return why the numbers of an output are scores of classes; an empty text where they may be anything."""
    count = scores.shape[1]
    if known.last(name) in SOFTMAX:
        return f"is computed by {known.last(name)}"
    if sums_to_one(scores):
        return "holds probabilities, which sum to 1 for each sample"
    if twin := class_twin(scores, known.outputs):
        return f"has its highest value at the class that {twin} names"
    if read_by(known.graph, name, ("ArgMax", "Softmax")):
        return "is read by an ArgMax or a Softmax"
    if name not in known.floats or (within_unit(scores) and known.last(name) in ("Sigmoid", "")):
        return ""
    if is_named(name, CLASS_NAMES):
        return "has the name of class scores"
    if count == known.classes:
        return f"has as many values as there are labels, {count}"
    if known.last(name) not in PRODUCTS or (count % EMBEDDING_STEP == 0):
        return ""
    if known.real and trained_by_softmax(scores):
        return "sums to nearly the same for every sample, as training by a softmax leaves logits"
    if known.image_axes and (count in KNOWN_CLASSES or (count == CIFAR_10 and not known.real)):
        return "is computed from an image, and so many classes have well-known data sets"
    return ""


def _arrays(known: Evidence, certain: bool) -> Iterator[InferredProblem]:
    if certain:
        yield InferredProblem("arrays", "as requested")


TASKS: dict[str, Infer] = {"classification": _classification, "arrays": _arrays}
"""The core's own; packages bring others (entry points `inference.TASK`)."""
ORDER: tuple[Task, ...] = ("detection", "text", "segmentation", "classification", "multi-label", "embedding")
"""Boxes and texts first: their outputs would pass for maps, or several of their outputs for classes."""
