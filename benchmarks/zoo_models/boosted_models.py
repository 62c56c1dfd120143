"""Trees of LightGBM and XGBoost, as their own files."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gauntlet.core.arrays import Array, NamedArrays
from zoo_models.zoo_model import MISSING, ZooModel, diabetes, has_gaps, iris, with_gaps, with_samples


def _two() -> tuple[Array, Array]:
    return iris()[0], (iris()[1] == 1).astype(np.int64)


def _categories() -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    inputs = np.stack([rng.integers(0, 6, 300), rng.random(300)], 1).astype(np.float32)
    return inputs, ((inputs[:, 0] % 2 == 0) ^ (inputs[:, 1] > 0.8)).astype(np.int64)


def _counts() -> tuple[Array, Array]:
    return diabetes()[0][:440], np.round(diabetes()[1] / 50)[:440]


FOREST = {"boosting_type": "rf", "bagging_freq": 1, "bagging_fraction": 0.6}
CATEGORIES = {"enable_categorical": True, "feature_types": ["c", "q"], "tree_method": "hist"}
TREES: dict[str, tuple[str, dict[str, Any], Callable[[], tuple[Array, Array]], str]] = {
    "lightgbm_classes": ("LGBMClassifier", {}, iris, ""),
    "lightgbm_two_classes": ("LGBMClassifier", {}, _two, ""),
    "lightgbm_values": ("LGBMRegressor", {}, diabetes, ""),
    "lightgbm_quantile": ("LGBMRegressor", {"objective": "quantile", "alpha": 0.3}, diabetes, ""),
    "lightgbm_huber": ("LGBMRegressor", {"objective": "huber", "alpha": 90, "learning_rate": 0.4}, diabetes, ""),
    "lightgbm_dart": ("LGBMClassifier", {"boosting_type": "dart"}, iris, ""),
    "lightgbm_goss": ("LGBMClassifier", {"data_sample_strategy": "goss"}, iris, ""),
    "lightgbm_gaps": ("LGBMClassifier", {}, with_gaps, ""),
    "lightgbm_categories": ("LGBMClassifier", {"categorical_feature": [0]}, _categories, ""),
    "lightgbm_rounds": ("LGBMClassifier", {"n_estimators": 60}, iris, ""),
    "lightgbm_sigmoid": ("LGBMClassifier", {"sigmoid": 2.0}, _two, ""),
    "lightgbm_forest": ("LGBMClassifier", FOREST, iris, ""),
    "lightgbm_linear": ("LGBMRegressor", {"linear_tree": True}, diabetes, "linear models in its leaves"),
    "lightgbm_zero": ("LGBMClassifier", {"zero_as_missing": True}, iris, ""),
    "lightgbm_counts": ("LGBMRegressor", {"objective": "poisson"}, _counts, ""),
    "lightgbm_gamma": ("LGBMRegressor", {"objective": "gamma"}, diabetes, ""),
    "lightgbm_tweedie": ("LGBMRegressor", {"objective": "tweedie"}, _counts, ""),
    "lightgbm_ranking": ("LGBMRanker", {}, _counts, ""),
    "lightgbm_value_forest": ("LGBMRegressor", FOREST, diabetes, ""),
    "xgboost_classes": ("XGBClassifier", {}, iris, ""),
    "xgboost_two_classes": ("XGBClassifier", {}, _two, ""),
    "xgboost_values": ("XGBRegressor", {}, diabetes, ""),
    "xgboost_absolute": ("XGBRegressor", {"objective": "reg:absoluteerror"}, diabetes, ""),
    "xgboost_gaps": ("XGBClassifier", {}, with_gaps, ""),
    "xgboost_base_score": ("XGBClassifier", {"base_score": 0.2}, _two, ""),
    "xgboost_monotone": ("XGBRegressor", {"monotone_constraints": "(0,0,1,0,0,0,0,0,0,0)"}, diabetes, ""),
    "xgboost_lossguide": ("XGBClassifier", {"grow_policy": "lossguide", "max_leaves": 5}, iris, ""),
    "xgboost_two_class_forest": ("XGBRFClassifier", {}, _two, ""),
    "xgboost_value_forest": ("XGBRFRegressor", {}, diabetes, ""),
    "xgboost_forest": ("XGBRFClassifier", {}, iris, ""),
    "xgboost_dart": ("XGBClassifier", {"booster": "dart"}, iris, ""),
    "xgboost_linear": ("XGBRegressor", {"booster": "gblinear"}, diabetes, ""),
    "xgboost_linear_classes": ("XGBClassifier", {"booster": "gblinear"}, iris, ""),
    "xgboost_linear_two_classes": ("XGBClassifier", {"booster": "gblinear"}, _two, ""),
    "xgboost_counts": ("XGBRegressor", {"objective": "count:poisson"}, _counts, ""),
    "xgboost_gamma": ("XGBRegressor", {"objective": "reg:gamma"}, diabetes, ""),
    "xgboost_tweedie": ("XGBRegressor", {"objective": "reg:tweedie"}, _counts, ""),
    "xgboost_quantile": ("XGBRegressor", {"objective": "reg:quantileerror", "quantile_alpha": 0.3}, diabetes, ""),
    "xgboost_ranking": ("XGBRanker", {}, _counts, ""),
    "xgboost_pairs": ("XGBRanker", {"objective": "rank:pairwise"}, _counts, ""),
    "xgboost_categories": ("XGBClassifier", CATEGORIES, _categories, ""),
}
"""By name: the estimator, its arguments, its samples, and part of the reason for which it is refused."""


def boosted() -> dict[str, Callable[[Path], ZooModel]]:
    """Return the models of `TREES`; XGBoost's alternate between JSON and UBJSON."""
    return {name: partial(_trees, name) for name in TREES}


def _trees(name: str, folder: Path) -> ZooModel:
    library, rest = name.split("_", 1)
    kind, arguments, samples, refusal = TREES[name]
    quiet = {"n_estimators": 6, "verbosity": -1 if library == "lightgbm" else 0}
    model, (inputs, truth) = getattr(__import__(library), kind)(**quiet | arguments), samples()
    model.fit(inputs, truth, **({"group": [10] * 44} if kind.endswith("Ranker") else {}))
    path = folder / ("model.txt" if library == "lightgbm" else f"model.{'json' if len(rest) % 2 else 'ubj'}")
    (model.booster_ if library == "lightgbm" else model).save_model(path)

    def outputs(samples: NamedArrays) -> list[Any]:
        first = np.asarray(model.predict(samples["x"]))
        return [first, model.predict_proba(samples["x"])] if hasattr(model, "classes_") else [first.reshape(-1, 1)]

    words = MISSING if has_gaps(inputs) else ()
    labels = None if kind.endswith("Ranker") else truth  # the order of scores is no value of a label
    made = with_samples(path, lambda count: {"x": inputs[:count]}, outputs, labels, words)
    return ZooModel(made.source, made.seen, made.unseen, made.expected, words, refusal)
