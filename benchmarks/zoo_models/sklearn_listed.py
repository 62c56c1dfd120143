"""Every estimator that skl2onnx lists, on small data of the kind that it takes."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.linear_model as linear
from sklearn import base
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from gauntlet.core.arrays import Array
from zoo_models.sklearn_models import LINE, ROWS, fitted, reviews
from zoo_models.zoo_model import ZooModel, diabetes, iris

PAIR = [("line", LINE), ("bayes", GaussianNB())]
VALUES = [("line", linear.LinearRegression()), ("ridge", linear.Ridge())]
ARGUMENTS: dict[str, dict[str, Any]] = {
    name: arguments
    for names, arguments in (
        ("SelectFromModel RFE RFECV OneVsRestClassifier OneVsOneClassifier", {"estimator": LINE}),
        ("MultiOutputClassifier TunedThresholdClassifierCV", {"estimator": LINE}),
        ("VotingClassifier StackingClassifier", {"estimators": PAIR}),
        ("VotingRegressor StackingRegressor", {"estimators": VALUES}),
        ("PCA IncrementalPCA TruncatedSVD GaussianRandomProjection", {"n_components": 2}),
        ("GaussianMixture BayesianGaussianMixture KernelPCA", {"n_components": 3}),
        ("RandomForestClassifier ExtraTreesClassifier BaggingClassifier", {"n_estimators": 6}),
        ("RandomForestRegressor ExtraTreesRegressor RandomTreesEmbedding", {"n_estimators": 6}),
        ("KMeans MiniBatchKMeans", {"n_clusters": 4, "n_init": 1}),
        ("MLPClassifier MLPRegressor HistGradientBoostingClassifier", {"max_iter": 50}),
        ("RadiusNeighborsClassifier", {"radius": 2.0, "outlier_label": "most_frequent"}),
        ("RadiusNeighborsRegressor", {"radius": 7.0}),
        ("PassiveAggressiveRegressor", {"C": 0.01}),
        ("ColumnTransformer", {"transformers": [("scaled", StandardScaler(), [0, 2])], "remainder": "passthrough"}),
        ("FeatureUnion", {"transformer_list": [("scaled", StandardScaler()), ("kept", "passthrough")]}),
        ("GridSearchCV", {"estimator": DecisionTreeClassifier(), "param_grid": {"max_depth": [2, 3]}}),
        ("LocalOutlierFactor", {"novelty": True}),
        (
            "ElasticNet MultiTaskElasticNet Lasso LassoLars MultiTaskLasso GammaRegressor QuantileRegressor",
            {"alpha": 0.01},
        ),
        ("MultiOutputRegressor", {"estimator": linear.Ridge()}),
        ("Pipeline", {"steps": [("scaled", StandardScaler()), ("line", LINE)]}),
        ("QuantileTransformer", {"n_quantiles": 20}),
        ("SelectKBest", {"k": 2}),
    )
    for name in names.split()
}
"""Of the constructor, where the default takes long or does not suffice."""
ROUNDED = ("CategoricalNB", "OneHotEncoder", "OrdinalEncoder", "TargetEncoder")
TWO_CLASSES = ("GaussianProcessClassifier", "TargetEncoder", "TunedThresholdClassifierCV")
TWO_VALUES = ("MultiTaskElasticNet", "MultiTaskElasticNetCV", "MultiTaskLasso", "MultiTaskLassoCV")
NO_ARRAYS = ("CastRegressor", "CastTransformer", "DictVectorizer", "FeatureHasher", "ReplaceTransformer")
"""Estimators of skl2onnx's own, and of dictionaries."""
REFUSED = {
    "GaussianProcessClassifier": "com.microsoft::Solve",
    "NearestNeighbors": "can neither predict nor transform",
    "RadiusNeighborsClassifier": "outside the radius",
    "RadiusNeighborsRegressor": "outside the radius",
}
"""Part of the reason for which a run refuses an estimator."""


def samples_for(name: str, estimator: Any) -> tuple[Array, Array]:
    """Return inputs of the kind that an estimator takes, and labels."""
    if name in ("CountVectorizer", "TfidfVectorizer"):
        return reviews()
    if name.startswith("Label"):
        return iris()[1][:ROWS], iris()[1][:ROWS]
    # Flowers have equal distances, of which rounding chooses.
    inputs, truth = diabetes() if base.is_regressor(estimator) or name == "KNeighborsTransformer" else iris()
    inputs, truth = inputs[:ROWS], truth[:ROWS]
    if base.is_regressor(estimator):
        inputs, truth = 20 * inputs, truth / 100
    if name in TWO_CLASSES:
        truth = (truth == 1).astype(np.int64)
    if name == "MultiOutputClassifier":
        truth = np.stack([truth > 0, truth % 2], 1).astype(np.int64)
    if name in TWO_VALUES or name == "MultiOutputRegressor":
        truth = np.stack([truth, truth % 2], 1)
    return np.round(inputs) if name in ROUNDED else inputs, truth


def listed(name: str, cls: type, folder: Path) -> ZooModel:
    """Fit an estimator of this class, and save it."""
    seed = {"random_state": 0} if "random_state" in cls._get_param_names() else {}
    estimator = cls(**ARGUMENTS.get(name, {}), **seed)
    return fitted(folder, estimator, *samples_for(name, estimator), REFUSED.get(name, ""))


def every_listed() -> dict[str, Callable[[Path], ZooModel]]:
    """Return a model for each estimator that skl2onnx lists, by name."""
    from skl2onnx._supported_operators import sklearn_operator_name_map

    classes = {cls.__name__: cls for cls in sklearn_operator_name_map if cls.__module__.startswith("sklearn.")}
    chosen = sorted(classes.keys() - {*NO_ARRAYS, "_ConstantPredictor"})
    return {f"sklearn_{name}": partial(listed, name, classes[name]) for name in chosen}
