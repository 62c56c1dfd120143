"""scikit-learn models: files without pickle, what such a model is given, and what it answers."""

import re
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError

LABEL = "label"
ADDRESS = re.compile(r'("__id__": |"file": ")(\d+)')


def save(path: Path, estimator: Any) -> None:
    """Write a fitted estimator as a skops file; equal models become equal files."""
    import skops.io

    skops.io.dump(estimator, path)
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    schema = contents.pop("schema.json").decode()
    # Skops names arrays after their addresses in memory and notes the time; neither belongs to the model.
    numbers: dict[str, str] = {}
    for _, address in ADDRESS.findall(schema):
        numbers.setdefault(address, str(len(numbers)))
    schema = ADDRESS.sub(lambda found: found[1] + numbers[found[2]], schema)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in contents.items():
            stem, dot, suffix = name.partition(".")
            archive.writestr(zipfile.ZipInfo(numbers.get(stem, stem) + dot + suffix), data)
        archive.writestr(zipfile.ZipInfo("schema.json"), schema)


def load(path: Path, trusted: Sequence[str] | None) -> Any:
    """Read a skops file.

    Args:
        path: the file.
        trusted: types that may be made besides those that skops trusts by itself. None stands for all: only for a file
            that was made here, or that went through this function with a list before.

    Raises:
        StageError: when it is no such file, or holds a type that nobody trusts.
    """
    import skops.io

    try:
        unknown = skops.io.get_untrusted_types(file=path)
        strangers = [] if trusted is None else sorted(set(unknown) - set(trusted))
        if not strangers:
            return skops.io.load(path, trusted=unknown)
    except Exception as error:  # the reader's errors share no base; a missing package of the model is one of them
        raise StageError(f"{path}: not a skops file that can be read here ({type(error).__name__}: {error})") from error
    raise StageError(
        f"{path}: holds types that are not trusted: {', '.join(strangers)}. A file can run code or read memory through "
        "them; if you trust whoever made it, name them in train.trusted, or in `trusted` of the target sklearn"
    )


def parameter_count(path: Path) -> int:
    """Return how many numbers a model's file stores in arrays of floats or of records."""
    total = 0
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if not name.endswith(".npy"):
                continue
            with archive.open(name) as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
            total += array.size * len(array.dtype.names or ("one",)) if array.dtype.kind in "fV" else 0
    return total


def describe(estimator: Any) -> str:
    """Return what an estimator is made of: `StandardScaler + CalibratedClassifierCV(OneVsRestClassifier(SVC))`."""
    steps = getattr(estimator, "steps", None)
    if steps:
        return " + ".join(describe(step) for _, step in steps if step not in (None, "passthrough"))
    inner = getattr(estimator, "estimator", None)
    return f"{type(estimator).__name__}({describe(inner)})" if inner is not None else type(estimator).__name__


def last_step(estimator: Any) -> Any:
    """Return the step of a pipeline that answers."""
    steps = getattr(estimator, "steps", None)
    return last_step(steps[-1][1]) if steps else estimator


def samples(inputs: NamedArrays) -> Any:
    """Return what an estimator is given: one input's array as it is, several inputs as the columns of a table."""
    arrays = {name: array.astype(object) if array.dtype.kind == "U" else array for name, array in inputs.items()}
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    import pandas as pd

    return pd.DataFrame({name: array.reshape(len(array)) for name, array in arrays.items()})


@dataclass(frozen=True)
class EstimatorOutput:
    """A method of an estimator, and what becomes of its answer in the ONNX form."""

    output: str
    method: str
    form: Callable[[Any], Array] = np.asarray

    def ask(self, estimator: Any, given: Any) -> Array:
        """Return the output for some samples."""
        return self.shaped(getattr(estimator, self.method)(given))

    def shaped(self, answer: Any) -> Array:
        """Return what the method answered, as the ONNX form gives it. Floats are float32, whole numbers int64."""
        return _plain(self.form(answer))


def estimator_outputs(estimator: Any) -> tuple[EstimatorOutput, ...]:
    """Return what a fitted estimator is asked, by the outputs of its ONNX form; the one that tells most is the last.

    A classifier gives `label` (n,) and `probabilities`, or `scores` where it has none, (n, classes); a regressor and a
    transformer `variable` (n, values); a clusterer `label` (n,), and its distances as `scores` where it has some; an
    outlier detector `label` and `scores`, each (n, 1).

    Raises:
        StageError: when it is none of these.
    """
    from sklearn.base import is_classifier, is_clusterer, is_outlier_detector, is_regressor

    if is_classifier(estimator):
        label = EstimatorOutput(LABEL, "predict", partial(_one_a_sample, estimator))
        if hasattr(estimator, "predict_proba"):
            return label, EstimatorOutput("probabilities", "predict_proba")
        return label, EstimatorOutput("scores", "decision_function", _two_sided)
    if is_regressor(estimator):
        return (EstimatorOutput("variable", "predict", _columns),)
    if is_clusterer(estimator):
        label = EstimatorOutput(LABEL, "predict")
        return (label, EstimatorOutput("scores", "transform")) if hasattr(estimator, "transform") else (label,)
    if is_outlier_detector(estimator):
        return EstimatorOutput(LABEL, "predict", _columns), EstimatorOutput("scores", "decision_function", _columns)
    if hasattr(estimator, "transform"):
        return (EstimatorOutput("variable", "transform", _columns),)
    raise StageError(f"{describe(estimator)} can neither predict nor transform")


def answers(estimator: Any, given: Any) -> NamedArrays:
    """Return what a fitted estimator answers, by the names and in the shapes of its ONNX form.

    Raises:
        StageError: when it can neither predict nor transform, or answers several questions at once.
    """
    return {question.output: question.ask(estimator, given) for question in estimator_outputs(estimator)}


def _one_a_sample(estimator: Any, labels: Any) -> Array:
    if np.ndim(labels) != 1:
        raise StageError(f"{describe(estimator)} gives several labels a sample; bring one model a question")
    return np.asarray(labels)


def _columns(values: Any) -> Array:
    dense = values.toarray() if hasattr(values, "toarray") else np.asarray(values)
    return dense.reshape(len(dense), -1)


def _two_sided(decision: Any) -> Array:
    """Return one score a class; between two classes, scikit-learn gives one number, the second class's."""
    scores = np.asarray(decision)
    return np.stack([-scores, scores], axis=1) if scores.ndim == 1 else scores


def _plain(array: Array) -> Array:
    if array.dtype.kind == "f":
        return array.astype(np.float32)
    return array.astype(np.str_) if array.dtype.kind in "OU" else array.astype(np.int64)
