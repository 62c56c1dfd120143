"""Pipelines of scikit-learn as people have them."""

import warnings
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import base, compose, ensemble, linear_model, preprocessing
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import DBSCAN
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.feature_selection import RFE
from sklearn.impute import SimpleImputer
from sklearn.model_selection import FixedThresholdClassifier, GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

from gauntlet.core.arrays import Array, NamedArrays
from zoo_models.zoo_model import MISSING, SAMPLES, UNSEEN, ZooModel, diabetes, has_gaps, iris, with_gaps, with_samples

ROWS = SAMPLES + UNSEEN
LINE = linear_model.LogisticRegression(max_iter=500)


def methods_of(estimator: Any) -> tuple[str, ...]:
    """Return the methods that a user calls, as scikit-learn's own documentation names them."""
    names = ["predict", "predict_proba"] if hasattr(estimator, "predict_proba") else ["predict", "decision_function"]
    if base.is_regressor(estimator):
        names = ["predict"]
    elif base.is_clusterer(estimator):
        names = ["predict", "transform"]
    elif not hasattr(estimator, "predict"):
        names = ["transform"]
    return tuple(name for name in names if hasattr(estimator, name))


def called(estimator: Any, method: str, inputs: Any) -> Array:
    """Return a method's result as an ONNX file can hold it: dense, and a score for each of two classes."""
    result = getattr(estimator, method)(inputs)
    if isinstance(result, list):  # of several labels, an array each
        return np.stack([each[:, 1] for each in result], 1)
    array = np.asarray(result.toarray() if hasattr(result, "toarray") else result)
    if method == "decision_function" and array.ndim == 1 and base.is_classifier(estimator):
        return np.stack([-array, array], 1)
    if method == "predict" and base.is_classifier(estimator) and array.dtype.kind in "bf":
        return array.astype(np.int64)  # an ONNX file's classes are whole numbers or texts
    rows = method == "transform" or base.is_regressor(estimator) or base.is_outlier_detector(estimator)
    return array.reshape(len(array), -1) if rows else array


def fitted(folder: Path, estimator: Any, inputs: Any, truth: Array, refusal: str = "") -> ZooModel:
    """Fit an estimator on an array or a table, and save it; `refusal` is part of the reason for which it is refused."""
    import pandas as pd
    import skops.io

    table = inputs if isinstance(inputs, dict) else {"x": inputs}
    take = pd.DataFrame if isinstance(inputs, dict) else itemgetter("x")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if isinstance(estimator, (preprocessing.LabelEncoder, preprocessing.LabelBinarizer)):
            estimator.fit(truth)
        else:
            rows = 4 if isinstance(estimator, preprocessing.KernelCenterer) else ROWS  # as many as columns
            estimator.fit(take(table)[:rows], truth[:rows])
    skops.io.dump(estimator, folder / "model.skops")

    def outputs(samples: NamedArrays) -> list[Any]:
        return [] if refusal else [called(estimator, m, take(samples)) for m in methods_of(estimator)]

    labels = truth if base.is_classifier(estimator) or base.is_regressor(estimator) else None
    draw = lambda count: {name: array[:count] for name, array in table.items()}  # noqa: E731
    made = with_samples(folder / "model.skops", draw, outputs, labels)
    words = (*made.words, *(MISSING if any(has_gaps(array) for array in table.values()) else ()))
    return ZooModel(made.source, made.seen, made.unseen, made.expected, words, refusal)


def flowers(change: Callable[[Array], Any] = lambda truth: truth) -> tuple[Array, Array]:
    """Return iris, and its species after a change."""
    inputs, truth = iris()
    return inputs, change(truth)


def passengers() -> tuple[dict[str, Array], Array]:
    """Return a table of whole numbers, floats and texts, and whether each passenger survived."""
    rng = np.random.default_rng(0)
    table = {
        "age": rng.integers(1, 90, ROWS),
        "fare": rng.random(ROWS).astype(np.float32),
        "port": rng.choice(["C", "Q", "S"], ROWS),
    }
    return table, (table["age"] + 40 * table["fare"] > 60).astype(np.int64)


def reviews() -> tuple[Array, Array]:
    """Return texts, and whether each is of praise."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(["good", "bad", "fine", "poor", "it", "was"], 6)) for _ in range(ROWS)]
    return np.array(texts), np.array([text.count("good") >= text.count("bad") for text in texts]).astype(np.int64)


def columns(last: Any, texts: Any = None) -> Any:
    """Return an estimator of `passengers`."""
    numbers = make_pipeline(SimpleImputer(strategy="median"), preprocessing.StandardScaler())
    parts = [("numbers", numbers, ["age", "fare"]), ("texts", texts or preprocessing.OneHotEncoder(), ["port"])]
    return make_pipeline(compose.ColumnTransformer(parts), last)


def whole() -> tuple[Array, Array]:
    """Return a matrix of small whole numbers, and two classes."""
    inputs = np.random.default_rng(0).integers(0, 4, (ROWS, 3))
    return inputs, inputs[:, 0] % 2


def several() -> tuple[Array, Array]:
    """Return iris, and two labels a flower."""
    return flowers(lambda truth: np.stack([truth == 0, truth < 2], 1).astype(np.int64))


def several_classes() -> tuple[Array, Array]:
    """Return iris, and two classes a flower, one of three."""
    return flowers(lambda truth: np.stack([truth, truth == 1], 1).astype(np.int64))


def two() -> tuple[Array, Array]:
    """Return iris, and two classes."""
    return flowers(lambda truth: (truth == 1).astype(np.int64))


GROWN = ensemble.GradientBoostingRegressor(n_estimators=6, random_state=0)
SCALE, TREE = preprocessing.StandardScaler(), ensemble.RandomForestClassifier(4, random_state=0)
PIPELINES: dict[str, tuple[Any, Callable[[], tuple[Any, Array]], str]] = {
    "names": (LINE, lambda: flowers(lambda t: np.array(["setosa", "versicolor", "virginica"])[t]), ""),
    "booleans": (LINE, lambda: flowers(lambda t: t == 1), ""),
    "float_classes": (TREE, lambda: flowers(lambda t: t.astype(float)), ""),
    "other_classes": (LINE, lambda: flowers(lambda t: t * 5 - 3), "are out of range"),
    "double": (LINE, lambda: (iris()[0].astype(np.float64), iris()[1]), ""),
    "one_column": (LINE, lambda: (iris()[0][:, 2:3], iris()[1]), ""),
    "values_whole": (ensemble.RandomForestRegressor(8), lambda: (diabetes()[0], diabetes()[1].astype(np.int64)), ""),
    "calibrated": (CalibratedClassifierCV(SVC(), method="isotonic", cv=3), iris, ""),
    "soft_votes": (ensemble.VotingClassifier([("a", LINE), ("b", TREE)], voting="soft"), iris, ""),
    "reduced": (make_pipeline(SCALE, PCA(2), SVC()), iris, ""),
    "two_class_scores": (SVC(), lambda: flowers(lambda t: (t == 1).astype(int)), ""),
    "selected": (make_pipeline(SCALE, RFE(LINE, n_features_to_select=2), SVC()), iris, ""),
    "polynomial": (make_pipeline(preprocessing.PolynomialFeatures(), linear_model.Ridge()), diabetes, ""),
    "searched": (GridSearchCV(make_pipeline(SCALE, SVC()), {"svc__C": [1, 9]}, cv=2), iris, ""),
    "gaps": (make_pipeline(SimpleImputer(), LINE), with_gaps, ""),
    "gaps_marked": (make_pipeline(SimpleImputer(add_indicator=True), LINE), with_gaps, ""),
    "gaps_trees": (ensemble.HistGradientBoostingClassifier(max_iter=3), with_gaps, ""),
    "gaps_forest": (ensemble.RandomForestClassifier(4, random_state=0), with_gaps, ""),
    "whole": (make_pipeline(preprocessing.OneHotEncoder(), LINE), whole, ""),
    "whole_tree": (TREE, whole, ""),
    "table": (columns(LINE), passengers, ""),
    "table_ordinal": (columns(TREE, preprocessing.OrdinalEncoder()), passengers, ""),
    "table_boosted": (columns(ensemble.GradientBoostingClassifier(n_estimators=4)), passengers, ""),
    "table_values": (columns(linear_model.Ridge()), passengers, ""),
    "reviews": (make_pipeline(TfidfVectorizer(), LINE), reviews, ""),
    "reviews_pairs": (make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LINE), reviews, ""),
    "reviews_logs": (make_pipeline(TfidfVectorizer(sublinear_tf=True), LINE), reviews, ""),
    "logarithm": (make_pipeline(preprocessing.FunctionTransformer(np.log1p), LINE), iris, ""),
    "own_function": (make_pipeline(preprocessing.FunctionTransformer(np.cbrt), LINE), iris, "the function cbrt"),
    "target_scaled": (
        compose.TransformedTargetRegressor(linear_model.Ridge(), transformer=preprocessing.StandardScaler()),
        diabetes,
        "",
    ),
    "target_logarithm": (
        make_pipeline(SCALE, compose.TransformedTargetRegressor(GROWN, func=np.log1p, inverse_func=np.expm1)),
        diabetes,
        "",
    ),
    "threshold": (make_pipeline(SCALE, FixedThresholdClassifier(LINE, threshold=0.2)), two, ""),
    "several_labels": (MLPClassifier(max_iter=30), several, ""),
    "several_labels_trees": (ensemble.ExtraTreesClassifier(6, random_state=0), several, ""),
    "several_labels_lines": (make_pipeline(SCALE, OneVsRestClassifier(LINE)), several, ""),
    "several_labels_neighbors": (KNeighborsClassifier(), several, ""),
    "several_classes": (ensemble.ExtraTreesClassifier(6), several_classes, "returns several classes for each sample"),
    "no_prediction": (DBSCAN(), iris, "can neither predict nor transform"),
}
"""By name: the estimator, its samples, and part of the reason for which it is refused."""


def pipelines() -> dict[str, Callable[[Path], ZooModel]]:
    """Return the models of `PIPELINES`, and files that are no skops files."""
    made = {f"sklearn_{name}": partial(_pipeline, name) for name in PIPELINES}
    return made | {f"sklearn_{suffix}": partial(_pickle, suffix) for suffix in ("pkl", "joblib")}


def _pipeline(name: str, folder: Path) -> ZooModel:
    estimator, samples, refusal = PIPELINES[name]
    return fitted(folder, estimator, *samples(), refusal)


def _pickle(suffix: str, folder: Path) -> ZooModel:
    import joblib

    made = fitted(folder, LINE, *iris())
    joblib.dump(LINE, folder / f"model.{suffix}")
    return ZooModel(folder / f"model.{suffix}", made.seen, made.unseen, [], (), "skops.io.dump(joblib.load(")
