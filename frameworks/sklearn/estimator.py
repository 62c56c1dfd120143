"""scikit-learn models: save and load without pickle, their inputs and their outputs."""

import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from frameworks.arguments import Arguments
from frameworks.session import LoadedModel
from frameworks.sklearn.labels import Threshold, label_count, last_step, probability_of_each, takes_columns
from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.signature import TensorSpec

LABEL = "label"
ADDRESS = re.compile(r'("__id__": |"file": ")(\d+)')


def save(path: Path, estimator: Any) -> None:
    """Write a fitted estimator as a skops file; equal models give equal files."""
    import skops.io

    skops.io.dump(estimator, path)
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    schema = contents.pop("schema.json").decode()
    # skops names arrays by their memory addresses and stores the time; neither belongs to the model.
    addresses = dict.fromkeys(address for _, address in ADDRESS.findall(schema))
    numbers = {address: str(number) for number, address in enumerate(addresses)}
    schema = ADDRESS.sub(lambda match: match[1] + numbers[match[2]], schema)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in contents.items():
            stem, dot, suffix = name.partition(".")
            archive.writestr(zipfile.ZipInfo(numbers.get(stem, stem) + dot + suffix), data)
        archive.writestr(zipfile.ZipInfo("schema.json"), schema)


def save_estimator(estimator: Any, sample: object, folder: Path) -> Path | None:
    """Save an estimator that Python holds; see `Framework.save`."""
    base = sys.modules.get("sklearn.base")
    if base is None or not isinstance(estimator, base.BaseEstimator):
        return None
    path = folder / f"{type(last_step(estimator)).__name__}.skops"
    save(path, estimator)
    return path


def fitted_columns(path: Path, trust: bool) -> tuple[str, ...]:
    """Return the columns of the table that a file's estimator was fitted on; see `Framework.columns`."""
    try:
        return Columns.of_estimator(load(path, None if trust else ())).features
    except StageError:  # loading it says why
        return ()


def load(path: Path, trusted: Sequence[str] | None) -> Any:
    """Read a skops file; raise StageError if it is not one, or holds an untrusted type.

    `trusted` are types to trust besides skops' own list. None trusts all: only for a file that was written here, or has
    been loaded with a list before.
    """
    import skops.io

    try:
        unknown = skops.io.get_untrusted_types(file=path)
        untrusted = [] if trusted is None else sorted(set(unknown) - set(trusted))
        if not untrusted:
            return skops.io.load(path, trusted=unknown)
    except Exception as error:  # skops' errors share no base; a missing package of the model is one of them
        raise StageError(f"{path}: not a skops file that can be read here ({type(error).__name__}: {error})") from error
    raise StageError(
        f"{path}: holds types that are not trusted: {', '.join(untrusted)}. A file can run code or read memory through "
        "them. Fix: if you trust its author, name them in train.trusted, or give --trust to "
        "gauntlet run MODEL or gauntlet bench"
    )


def parameter_count(path: Path) -> int:
    """Return how many numbers a model's file stores in arrays of floats or of records."""
    total = 0
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".npy"):
                with archive.open(name) as file:
                    array = np.lib.format.read_array(file, allow_pickle=False)
                total += array.size * len(array.dtype.names or ("one",)) if array.dtype.kind in "fV" else 0
    return total


def describe(estimator: Any) -> str:
    """Return an estimator's structure: `StandardScaler + CalibratedClassifierCV(OneVsRestClassifier(SVC))`."""
    steps = getattr(estimator, "steps", None)
    if steps:
        return " + ".join(describe(step) for _, step in steps if step not in (None, "passthrough"))
    inner = getattr(estimator, "estimator", None)
    return f"{type(estimator).__name__}({describe(inner)})" if inner is not None else type(estimator).__name__


def class_names(classes: Any) -> tuple[str, ...]:
    """Return the names of classes; booleans and whole numbers, of any type, are called `0`, `1`, ..."""
    array = np.asarray(classes)
    whole = array.dtype.kind == "b" or (array.dtype.kind == "f" and bool(np.all(array == np.floor(array))))
    return tuple(map(str, (array.astype(np.int64) if whole else array).tolist()))


def label_is_highest(estimator: Any) -> bool:
    """Return whether a classifier's label is the class of its highest score.

    It is not where a threshold decides, and where the scores are those of pairs of classes: an SVC that is asked for
    them.
    """
    model = last_step(estimator)
    if Threshold.of(model) is not None:
        return False
    pairs = getattr(model, "decision_function_shape", "ovr") == "ovo" and len(model.classes_) > 2
    return not pairs or hasattr(model, "predict_proba")


@dataclass(frozen=True)
class Columns(Arguments):
    """What an estimator takes: the matrix of its features as one array, or each feature as an array of its name."""

    features: tuple[str, ...] = ()

    @classmethod
    def of_estimator(cls, estimator: Any) -> "Columns":
        """Return those of a fitted estimator; it knows names only where it was fitted on a table."""
        return cls(features=tuple(map(str, getattr(estimator, "feature_names_in_", ()))))

    def call_order(self, arrays: Iterable[str]) -> tuple[str, ...]:
        """Return the names in the order of the fit, those of other columns last; raise StageError without names."""
        names = tuple(arrays)
        if len(names) == 1:
            return names
        if not self.features:
            raise StageError(
                "the model was fitted on a matrix, so it is unknown which column each of the data's "
                f"{', '.join(names)} is. Fix: give one array of shape (samples, features), with the columns in the "
                "order of the fit, or fit the model on a pandas DataFrame with these columns"
            )
        return (*(f for f in self.features if f in names), *(name for name in names if name not in self.features))


def estimator_inputs(estimator: Any, inputs: NamedArrays) -> Any:
    """Return what an estimator takes: one input's array as it is, several inputs as the columns of a table.

    One array is a table, too, if the first step takes apart one with so many columns. A text without characters is NaN
    where an imputer fills NaN: no text of ONNX is. Floats have the type of a clustering's centers: it takes no other.
    """
    imputed, columns, arrays = _imputed_columns(estimator), Columns.of_estimator(estimator), dict[str, Array]()
    steps = [step for _, step in getattr(estimator, "steps", (("model", estimator),))]
    floats = next((step.cluster_centers_.dtype for step in steps if hasattr(step, "cluster_centers_")), None)
    for name in columns.call_order(inputs):
        arrays[name] = inputs[name].astype(object) if inputs[name].dtype.kind == "U" else inputs[name]
        if inputs[name].dtype.kind == "U" and (imputed is None or name in imputed):
            arrays[name][inputs[name] == ""] = np.nan
        if inputs[name].dtype.kind == "f" and floats is not None:
            arrays[name] = inputs[name].astype(floats)
    first = next(iter(arrays.values()))
    if len(arrays) == 1 and not (takes_columns(estimator) and first.size == len(first) * len(columns.features)):
        return first
    import pandas as pd

    if len(arrays) == 1:
        return pd.DataFrame(first.reshape(len(first), -1), columns=list(columns.features))
    return pd.DataFrame({name: array.reshape(len(array)) for name, array in arrays.items()})


def _imputed_columns(estimator: Any) -> set[str] | None:
    """Return the columns whose NaN a SimpleImputer fills; None where it takes all."""
    from sklearn.impute import SimpleImputer

    def fills(part: Any) -> bool:
        parts = (part, *part.get_params().values()) if hasattr(part, "get_params") else ()
        return any(isinstance(each, SimpleImputer) and isinstance(each.missing_values, float) for each in parts)

    steps = [step for _, step in getattr(estimator, "steps", (("model", estimator),))]
    tables = [step for step in steps if hasattr(step, "transformers_") and hasattr(step, "feature_names_in_")]
    if not tables:
        return None if fills(estimator) else set()
    return {
        str(step.feature_names_in_[place])
        for step in tables
        for name, part, _ in step.transformers_
        if fills(part)
        for place in step._transformer_to_input_indices[name]
    }


@dataclass(frozen=True)
class EstimatorOutput:
    """A method of an estimator, and the output of the ONNX model that its result becomes."""

    output: str
    method: str
    reshape: Callable[[Any], Array] = np.asarray

    def compute(self, estimator: Any, inputs: Any) -> Array:
        """Return the output for some samples."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "X does not have valid feature names")  # a matrix in the order of the fit
            return self.convert(getattr(estimator, self.method)(inputs))

    def convert(self, result: Any) -> Array:
        """Return the method's result as the ONNX model returns it: floats as float32, integers as int64."""
        array = self.reshape(result)
        if array.dtype.kind == "f":
            return array.astype(np.float32)
        return array.astype(np.str_) if array.dtype.kind in "OU" else array.astype(np.int64)


def estimator_outputs(estimator: Any) -> tuple[EstimatorOutput, ...]:
    """Return the outputs of a fitted estimator's ONNX model, the most informative one last, or raise StageError.

    A classifier has `label` (n,) and `probabilities`, or else `scores`, (n, classes), unless it has neither; one of
    several labels `label` and, if it has them, `probabilities`, (n, labels); a regressor and a transformer `variable`
    (n, values); a clusterer `label` (n,), and its distances as `scores` if it has them; an outlier detector `label` and
    `scores`, each (n, 1); a mixture `label` (n,), and `probabilities`.
    """
    from sklearn.base import is_classifier, is_clusterer, is_outlier_detector, is_regressor

    if is_classifier(estimator) and label_count(estimator):
        label, each = EstimatorOutput(LABEL, "predict"), probability_of_each
        has_them = hasattr(estimator, "predict_proba")
        return (label, EstimatorOutput("probabilities", "predict_proba", each)) if has_them else (label,)
    if is_classifier(estimator):
        label = EstimatorOutput(LABEL, "predict", partial(_single_label, estimator))
        if hasattr(estimator, "predict_proba"):
            return label, EstimatorOutput("probabilities", "predict_proba")
        if not hasattr(estimator, "decision_function"):
            return (label,)
        return label, EstimatorOutput("scores", "decision_function", _score_per_class)
    if is_regressor(estimator):
        return (EstimatorOutput("variable", "predict", _columns),)
    if is_clusterer(estimator) and hasattr(estimator, "predict"):
        label = EstimatorOutput(LABEL, "predict")
        return (label, EstimatorOutput("scores", "transform")) if hasattr(estimator, "transform") else (label,)
    if is_outlier_detector(estimator):
        return EstimatorOutput(LABEL, "predict", _columns), EstimatorOutput("scores", "decision_function", _columns)
    if hasattr(estimator, "predict_proba"):
        return EstimatorOutput(LABEL, "predict"), EstimatorOutput("probabilities", "predict_proba")
    if hasattr(estimator, "transform"):
        return (EstimatorOutput("variable", "transform", _columns),)
    raise StageError(
        f"{describe(estimator)} can neither predict nor transform. Fix: fit an estimator that can on its result, for "
        "example KNeighborsClassifier"
    )


def predict(estimator: Any, inputs: Any) -> NamedArrays:
    """Return a fitted estimator's outputs as its ONNX model returns them, or raise StageError if there can be none."""
    return {each.output: each.compute(estimator, inputs) for each in estimator_outputs(estimator)}


def loaded(estimator: Any, parameters: int) -> LoadedModel:
    """Return a fitted estimator as a model: of a matrix, where it knows its width, or of whatever the data has."""
    import sklearn
    from sklearn.base import is_classifier, is_regressor

    def call(feed: NamedArrays) -> NamedArrays:
        return predict(estimator, estimator_inputs(estimator, feed))

    width, classes = getattr(estimator, "n_features_in_", None), getattr(estimator, "classes_", None)
    several = is_classifier(estimator) and label_count(estimator) > 0
    matrix = () if width is None else (TensorSpec(name="input", dtype="float32", shape=("batch", int(width))),)
    return LoadedModel(
        framework=f"scikit-learn {sklearn.__version__}",
        architecture=describe(estimator),
        parameters=parameters,
        call=call,
        arguments=Columns.of_estimator(estimator),
        class_count=None if classes is None or several else len(classes),
        task="regression" if is_regressor(estimator) else "multi-label" if several else None,
        declared=matrix,
    )


def _single_label(estimator: Any, labels: Any) -> Array:
    if np.ndim(labels) != 1:
        raise StageError(f"{describe(estimator)} returns several labels per sample. Fix: use one model per label")
    array = np.asarray(labels)
    return array.astype(np.int64) if array.dtype.kind == "f" else array  # as skl2onnx writes classes 0.0, 1.0, ...


def _columns(values: Any) -> Array:
    dense = values.toarray() if hasattr(values, "toarray") else np.asarray(values)
    return dense.reshape(len(dense), -1)


def _score_per_class(decision: Any) -> Array:
    """Return one score per class; for two classes, scikit-learn returns the second class's only."""
    scores = np.asarray(decision)
    return np.stack([-scores, scores], axis=1) if scores.ndim == 1 else scores
