"""Infer what outputs and labels of a brought model mean, by the labels' values and by running it on some samples."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from configs.frameworks import trainings
from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.kinds import kinds, required
from gauntlet.core.signature import SCALED_TO_UNIT, Signature, Task
from gauntlet.datasets.image_folder import ImageFolder
from gauntlet.datasets.splits import HEAD, LABELS, array_name
from gauntlet.datasets.synthetic import draw_samples
from gauntlet.datasets.truth import SIGN_NAMES, are_class_numbers, are_one_hot, task_of
from gauntlet.frameworks.trial_run import TrialRun
from gauntlet.metrics.error_metrics import within_unit
from gauntlet.problems.inference import infer_problem
from gauntlet.problems.output_evidence import InferredProblem, sums_to_one

if TYPE_CHECKING:
    import onnx

MAX_SAMPLES, MAX_BYTES = 32, 256 << 20
"""Of those that the model is run on, and of its outputs for them."""
UNIT: dict[str, Any] = {"mean": [0.0] * 3, "std": [1.0] * 3, "resize": "letterbox"}
"""How most detectors expect images."""
FOLDER_TASKS = ("classification", "embedding")
"""Problems whose truth is the class of each sample, as folders of images tell it."""


@dataclass(frozen=True)
class BroughtModel:
    """A model, and what a first run has shown of it; `graph` is that of an ONNX file."""

    trial: TrialRun
    predict: Callable[[NamedArrays], NamedArrays]
    """From samples by input, shape (n, ...), to the outputs by name."""
    graph: "onnx.GraphProto | None" = None


def infer_meaning(
    model: BroughtModel, values: dict[str, Any], arrays: NamedArrays | None, names: tuple[str, ...], task: Task | None
) -> str:
    """Complete the parts `data` and `train` of a configuration with what the outputs mean; return it in words.

    `values`, the configuration, is changed in place; `arrays` are None for images and random samples.

    Raises:
        ConfigError: when the outputs, the names or the model's own signature do not fit the task.
    """
    part, trial = values["data"], model.trial
    own = trial.own.task if trial.own is not None else "arrays"
    if task is not None and own not in ("arrays", task):
        raise ConfigError(f"--task {task}: the signature in the model says {own}. Fix: remove --task")
    if part["kind"] == "image-folder" and task not in (None, *FOLDER_TASKS):
        part["labelled"] = False
    if heads := [name.removeprefix(HEAD) for name in arrays or () if name.startswith(HEAD)]:
        required("heads", "primary", "labels of further outputs")(values["train"], trial.outputs, heads)
    if trial.task is not None:
        part |= {"task": trial.task}
    if arrays and LABELS in arrays and task is None and not part.get("task"):
        samples = partial(_samples, part, arrays, trial)
        shown = task_of_labels(arrays[LABELS], trial, lambda: model.predict(samples()))
        part |= {"task": shown} if shown != task_of(arrays[LABELS]) else {}
    truth = part.get("task") or _task_of_truth(part, arrays)
    if arrays and LABELS in arrays and truth in ("classification", "text") and task in (None, "classification"):
        _require_scored(arrays[LABELS], names, trial)
    if truth not in (None, "detection") and task in (None, truth):
        return (
            f"classification, {trial.class_count or trial.scores.shape[1]} classes"
            if trial.scores and "classification" in (truth, part.get("task"))
            else f"{truth}, as the {'model says' if trial.task else 'labels are'}"
        )
    problem = _problem(model, part, arrays, len(names), task or truth, by_labels=task is None and truth is not None)
    if problem.task == "arrays" and task is None and part["kind"] == "image-folder":
        problem = _masked(model, part, names, problem)
    if names and problem.labels and len(names) != len(problem.labels):
        raise ConfigError(f"--labels: {len(names)} labels, but the outputs are of {len(problem.labels)} classes")
    if problem.task != "arrays" or task is not None:
        part |= {"task": problem.task}
    if labels := names or problem.labels:
        part |= {"labels": list(labels)} if problem.task != "arrays" else {}
    if problem.decode is not None:
        part["decode"] = problem.decode.model_dump(exclude_defaults=True)
        if part["kind"] == "image-folder" and trial.preprocessing is None and problem.decode.kind in SCALED_TO_UNIT:
            part |= UNIT
    elif problem.primary_output and not trainings()[values["train"]["kind"]].finds_prediction:
        values["train"]["primary_output"] = problem.primary_output
    add = kinds("recognized").get(problem.task) if part["kind"] == "image-folder" else None
    return _described(problem, task) + (add(part, problem, names) if add else "")


def _require_scored(labels: Array, names: tuple[str, ...], trial: TrialRun) -> None:
    """Raise `ConfigError` for classes that the scores of a model, its only output, (n, classes) or (n,), leave out."""
    if labels.dtype.kind == "U" and not names and trial.one_number:
        fix = "name both classes with --labels FILE, last the one that a high number means"
        raise ConfigError(
            f"the labels are texts such as {str(labels[0])!r}, but the model returns one number. Fix: {fix}"
        )
    if len(trial.outputs) > 1 or trial.scores is None or trial.class_count is not None:
        return
    count, classes = int(trial.scores.shape[1]), np.unique(labels).tolist()
    what = f"but the model has scores for {count} classes"
    if labels.dtype.kind == "U" and (unknown := [name for name in classes if name not in names]):
        among = "not among those of --labels" if names else f"one of {len(classes)}, {what}"
        if names or len(classes) != count:
            fix = "name all classes, in the order of the scores, with --labels FILE"
            raise ConfigError(f"the label {unknown[0]!r} is {among}. Fix: {fix}; or correct the labels")
    elif labels.dtype.kind in "iu" and max(classes) >= count:
        fix = "number the classes from 0, or say what the labels are, with --task"
        raise ConfigError(f"the highest label is {max(classes)}, {what}, 0 to {count - 1}. Fix: {fix}")


def _masked(
    model: BroughtModel, part: dict[str, Any], names: tuple[str, ...], problem: InferredProblem
) -> InferredProblem:
    """Return the segmentation that masks beside a folder's images suggest, where outputs have its form."""
    path = Path(part["path"])
    if "segmentation" not in kinds("recognized") or not any((*path.glob("masks"), *path.glob("*/masks"))):
        return problem
    try:
        problem = _problem(model, part, None, len(names), "segmentation", by_labels=False)
    except ConfigError:
        return problem
    return replace(problem, reason=problem.reason.replace("as requested", "as the folder's masks suggest"))


def _described(problem: InferredProblem, task: Task | None) -> str:
    if problem.task == "arrays":
        what = "arrays: each output is compared with the original's, number by number"
        way = "" if "--task" in problem.reason else "; if it is another problem, name it with --task"
        return what if task else f"{what}, because {problem.reason}{way}"
    kind = f" ({problem.decode.kind})" if problem.decode else ""
    return f"{problem.task}{kind}: {problem.reason}" + ("" if task else "; override with --task")


def _task_of_truth(part: dict[str, Any], arrays: NamedArrays | None) -> Task | None:
    """Return what the labels of the data are; None where it has none."""
    if part["kind"] == "image-folder":
        return "classification" if part.get("labelled", True) else None
    return task_of(arrays[LABELS]) if arrays and LABELS in arrays else None


def _problem(
    model: BroughtModel,
    part: dict[str, Any],
    arrays: NamedArrays | None,
    classes: int,
    task: Task | None,
    *,
    by_labels: bool,
) -> InferredProblem:
    """Return what the outputs mean; raise `ConfigError` when they do not fit a task that the user named."""
    trial = model.trial
    if task is None and trial.own is not None and trial.own.task != "arrays":
        return InferredProblem(trial.own.task, "the signature in the model says so", trial.own.primary_output)

    def inferred(part: dict[str, Any]) -> InferredProblem:
        samples, real = _samples(part, arrays, trial), part["kind"] != "synthetic"
        return infer_problem(samples, model.predict(samples), model.graph, task=task, classes=classes, real=real)

    try:
        problem = inferred(part)
        if problem.task == "arrays" and len(part.get("mean", ())) == len(UNIT["mean"]) and trial.preprocessing is None:
            scaled = inferred(part | UNIT)  # a detector finds nothing in images that are prepared for others
            problem = scaled if scaled.decode else problem
    except StageError as error:
        first = trial.inputs[0]
        batched = arrays[array_name(first.name)].ndim == len(first.shape) if arrays else part["kind"] == "image-folder"
        if model.graph is not None and trial.no_batch_axis and batched and isinstance(first.shape[0], str):
            fix = f"make_dynamic_shape_fixed MODEL.onnx FIXED.onnx --dim_param {first.shape[0]} --dim_value 1"
            raise ConfigError(f"{error}; or fix the batch to 1: python -m onnxruntime.tools.{fix}") from error
        if task is None or by_labels:  # the stages say more about it
            return InferredProblem(task or "arrays", f"the model was not run on the samples ({error})")
        raise ConfigError(f"--task {task}: {error}") from error
    if task is None and trial.no_batch_axis and problem.task not in ("text", "detection", "arrays"):
        return InferredProblem("arrays", "each sample is a whole input")
    return _with_known_size(problem, part, trial, task)


def _with_known_size(
    problem: InferredProblem, part: dict[str, Any], trial: TrialRun, task: Task | None
) -> InferredProblem:
    """Return `arrays` for boxes that are shares of an image whose size the model leaves open."""
    in_pixels = problem.decode is None or problem.decode.in_pixels or part["kind"] == "image-folder"
    if in_pixels or all(isinstance(axis, int) for axis in trial.inputs[0].shape[1:]):
        return problem
    reason = "boxes are shares of an image whose size the model leaves open"
    if task is not None:
        raise ConfigError(f"--task {task}: {reason}. Fix: export it with a fixed size")
    return InferredProblem("arrays", reason)


def _samples(part: dict[str, Any], arrays: NamedArrays | None, trial: TrialRun) -> NamedArrays:
    """Return some samples of the data by input, evenly spaced, in the order of the model's inputs."""
    known = {s.name: [axis for axis in s.shape[1:] if isinstance(axis, int)] for s in trial.outputs if s.dtype != "str"}
    size = sum(np.dtype(s.dtype).itemsize * math.prod(known[s.name]) for s in trial.outputs if s.name in known)
    count = max(1, min(MAX_SAMPLES, MAX_BYTES // max(1, size)))
    if arrays is not None:
        if len({len(arrays[array_name(spec.name)]) for spec in trial.inputs}) > 1:
            raise StageError("the arrays differ in length")  # the stage `data` says more about it
        chosen = np.unique(np.linspace(0, len(next(iter(arrays.values()))) - 1, count).astype(int))
        return {spec.name: arrays[array_name(spec.name)][chosen] for spec in trial.inputs}
    if part["kind"] == "image-folder":
        if not (samples := ImageFolder.model_validate(part).some_inputs(count)):
            raise StageError("no readable image")
        return samples
    declared = Signature(task="arrays", inputs=trial.inputs, outputs=(), layout="none")
    return draw_samples(declared, count, trial.dynamic_axes, no_batch_axis=trial.no_batch_axis)


LOGITS = (-1.0, 2.0)
"""A fit of the numbers 0 and 1 hardly leaves this range; logits of a trained network do."""


def task_of_labels(labels: Array, trial: TrialRun, predict: Callable[[], NamedArrays]) -> Task:
    """Return the problem whose truth labels are, shape (n, ...), given what a model returns for each sample.

    Labels are classes where the outputs are scores of as many columns as classes, or one number for two of them: as
    numbers of any type, in a column, or one-hot. Numbers 0 and 1 in several columns are else independent classes,
    unless the outputs are scores of something else. Masks may have one channel, and be floats.
    """
    ranks = {len(output.shape) for output in trial.outputs if output.dtype.startswith("float")}
    likely, numbers = task_of(labels), labels.dtype.kind in "iuf"
    mask = labels.ndim == 3 or (labels.ndim > 3 and 1 in (labels.shape[1], labels.shape[-1]))
    if numbers and ranks == {4} and mask and are_class_numbers(labels.ravel()):
        return "segmentation"
    if likely in ("tagging", "multi-label") and ranks == {3}:
        return "tagging"
    if numbers and labels.ndim in (1, 2) and labels.size == len(labels):
        return _of_column(labels.ravel(), trial, predict)
    columns = trial.scores.shape[1] if trial.scores else None
    if numbers and labels.ndim == 2 and labels.shape[1] == columns and np.isin(labels, (0, 1)).all():
        return "classification" if are_one_hot(labels) and not _independent(trial, predict) else "multi-label"
    return "regression" if likely == "tagging" and ranks and ranks <= {1, 2} else likely


def _of_column(labels: Array, trial: TrialRun, predict: Callable[[], NamedArrays]) -> Task:
    """Return the problem of one number per sample."""
    values, whole = {*np.unique(labels).tolist()}, labels.dtype.kind in "iu"
    if trial.scores:
        known = whole or trial.class_count or max(values) < int(trial.scores.shape[1])
        classes = known and are_class_numbers(labels)
        return "classification" if classes else task_of(labels)
    if not trial.one_number:
        return task_of(labels)
    if whole:
        return "classification" if values <= {0, 1} or values == {*map(int, SIGN_NAMES)} else "regression"
    outputs = _outputs(predict) if values == {0, 1} else None
    if outputs is None:
        return "regression"
    low, high = float(np.min(outputs)), float(np.max(outputs))
    return "classification" if within_unit(outputs) or low < LOGITS[0] or high > LOGITS[1] else "regression"


def _independent(trial: TrialRun, predict: Callable[[], NamedArrays]) -> bool:
    """Return whether scores are a probability for each class by itself."""
    outputs = _outputs(predict, trial.scores.name if trial.scores else None)
    return outputs is not None and within_unit(outputs) and not sums_to_one(outputs)


def _outputs(predict: Callable[[], NamedArrays], name: str | None = None) -> Array | None:
    """Return an output for some samples, by default the only one; None where the model fails on them."""
    try:
        outputs = predict()
    except StageError:  # the stages say more about it
        return None
    return outputs[name] if name else next(iter(outputs.values()))
