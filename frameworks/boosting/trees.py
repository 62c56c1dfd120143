"""Classifiers and regressors of LightGBM and XGBoost, in the libraries' own files: numbers, and no code."""

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from frameworks.boosting.plain_trees import plain_lightgbm, plain_xgboost, values_of
from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError, one_line

LABEL, PROBABILITIES, VARIABLE = "label", "probabilities", "variable"
RANKINGS = ("lambdarank", "rank_xendcg", "rank:ndcg", "rank:map", "rank:pairwise")
"""Objectives of rankers: their values are scores, of which only the order within a group means anything."""
LIGHTGBM_VALUES = (
    *("regression", "regression_l1", "huber", "fair", "quantile", "mape"),
    *("poisson", "gamma", "tweedie"),
    *RANKINGS[:2],
)
XGBOOST_SUMS = (
    *("reg:squarederror", "reg:absoluteerror", "reg:pseudohubererror", "reg:squaredlogerror", "reg:quantileerror"),
    *RANKINGS[2:],
)
"""Objectives whose values are the sums of the trees."""
XGBOOST_VALUES = (*XGBOOST_SUMS, "count:poisson", "reg:gamma", "reg:tweedie")
"""Objectives of one value a sample."""
ZERO_IS_MISSING = 1
"""How LightGBM stores, in bits 2 and 3 of a split's decision type, that it takes 0 for a missing value."""


@dataclass(frozen=True)
class BoostedTrees(ABC):
    """A fitted classifier or regressor of one vector per sample, where NaN is a missing value."""

    booster: Any
    library: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]

    @property
    @abstractmethod
    def classes(self) -> int:
        """The number of classes, at least 2; 1 for a regressor."""

    @abstractmethod
    def scores(self, inputs: Array) -> Array:
        """Return the results for float32 vectors.

        These are probabilities, shape (n, classes), or (n,) of the second of two classes; or values, shape (n,).
        """

    def unsupported(self) -> str | None:
        """Return what onnxmltools converts wrongly without saying so, or None."""
        return None

    def predict(self, inputs: Array) -> NamedArrays:
        """Return the outputs of the ONNX model: `label`, int64 (n,), and `probabilities`, float32 (n, classes).

        A regressor has `variable`, float32 (n, 1).
        """
        scores = np.asarray(self.scores(np.ascontiguousarray(inputs, np.float32)))
        if self.classes == 1:
            return {VARIABLE: scores.reshape(-1, 1).astype(np.float32)}
        if scores.ndim == 1:
            scores = np.stack([1 - scores, scores], axis=1)
        return {LABEL: scores.argmax(1).astype(np.int64), PROBABILITIES: scores.astype(np.float32)}


class LightGbm(BoostedTrees):
    """A `lightgbm.Booster`."""

    library = "lightgbm"
    suffixes = (".txt",)

    @classmethod
    def read(cls, path: Path) -> "LightGbm":
        """Read what `Booster.save_model` wrote; raise ValueError for another objective."""
        import lightgbm

        text = path.read_text("utf-8")
        if not text.startswith("tree"):  # LightGBM would write to standard output, too
            raise ValueError("the first line is not 'tree'")
        model = cls(lightgbm.Booster(model_str=text))
        known = ("binary", "multiclass", *LIGHTGBM_VALUES)
        if model.objective not in known or "sqrt" in model._settings:
            raise ValueError(f"its objective is {' '.join(model._settings)}; expected one of {', '.join(known)}")
        return model

    @property
    def objective(self) -> str:
        """The name of what was minimized."""
        return self._settings[0]

    @property
    def _settings(self) -> list[str]:
        return (values_of(self.text, "objective") or [""])[0].split() or ["none"]

    @property
    def text(self) -> str:
        """The file's content."""
        return str(self.booster.model_to_string())

    @property
    def features(self) -> int:
        """The length of a sample's vector."""
        return int(self.booster.num_feature())

    @property
    def classes(self) -> int:
        """The number of classes, or 1."""
        return 1 if self.objective in LIGHTGBM_VALUES else max(2, int(self.booster.num_model_per_iteration()))

    @property
    def leaves(self) -> list[int]:
        """The number of leaves of each tree."""
        return [int(value) for value in values_of(self.text, "num_leaves")]

    @property
    def version(self) -> str:
        """The library and its version."""
        import lightgbm

        return f"LightGBM {lightgbm.__version__}"

    def scores(self, inputs: Array) -> Array:
        """Return the probabilities, or the values."""
        return np.asarray(self.booster.predict(inputs))

    def save(self, path: Path) -> None:
        """Write a text file."""
        path.write_text(self.text, "utf-8")

    def unsupported(self) -> str | None:
        """Name linear leaves, and categories beside zeros that are missing values."""
        if "1" in values_of(self.text, "is_linear"):
            return "linear models in its leaves (linear_tree)"
        if self.zero_is_missing and any(kind & 1 for kind in self._splits):
            return "categories beside zeros that are missing values (zero_as_missing)"
        return None

    @property
    def zero_is_missing(self) -> bool:
        """Whether 0 goes where a missing value goes."""
        return any(kind >> 2 & 3 == ZERO_IS_MISSING for kind in self._splits)

    @property
    def _splits(self) -> list[int]:
        return [int(kind) for line in values_of(self.text, "decision_type") for kind in line.split()]

    def plain(self) -> "LightGbm":
        """Return a plain sum of trees with the same predictions for float32 samples."""
        import lightgbm

        text = plain_lightgbm(self.text, int(self.booster.num_model_per_iteration()))
        return LightGbm(lightgbm.Booster(model_str=text))


class XgBoost(BoostedTrees):
    """An `xgboost.Booster`."""

    library = "xgboost"
    suffixes = (".json", ".ubj")

    @classmethod
    def read(cls, path: Path) -> "XgBoost":
        """Read what `save_model` wrote, up to its best round; raise ValueError for another objective."""
        import xgboost

        return cls.of(xgboost.Booster(model_file=path))

    @classmethod
    def of(cls, booster: Any) -> "XgBoost":
        """Return a model without the rounds after its best one, which XGBoost keeps, and without feature names.

        One that returns classes (multi:softmax) returns the same classes as probabilities.
        """
        best, classifier = booster.attr("best_iteration"), cls(booster)
        if best is not None and not classifier.is_linear:
            classifier = cls(booster[: int(best) + 1])
        classifier.booster.feature_names = None
        if classifier.objective == "multi:softmax":
            classifier.booster.set_param({"objective": "multi:softprob"})
        objective = classifier.objective
        known = ("binary:logistic", "multi:softprob", *XGBOOST_VALUES)
        targets = int(classifier.learner["learner_model_param"].get("num_target", 1))
        if objective not in known or targets > 1:
            if targets > 1:
                raise ValueError(f"it has {targets} targets; expected one. Fix: fit and save a model for each of them")
            raise ValueError(f"its objective is {objective}; expected one of {', '.join(known)}")
        return classifier

    @property
    def objective(self) -> str:
        """The name of what was minimized."""
        return str(self.learner["objective"]["name"])

    @property
    def is_linear(self) -> bool:
        """Whether it is a linear model (booster: gblinear) instead of trees."""
        return str(self.learner["gradient_booster"]["name"]) == "gblinear"

    @property
    def learner(self) -> dict[str, Any]:
        """What its file holds."""
        learner: dict[str, Any] = json.loads(self.booster.save_raw("json"))["learner"]
        return learner

    @property
    def features(self) -> int:
        """The length of a sample's vector."""
        return int(self.booster.num_features())

    @property
    def classes(self) -> int:
        """The number of classes, or 1."""
        return 1 if self.objective in XGBOOST_VALUES else max(2, int(self.learner["learner_model_param"]["num_class"]))

    @property
    def leaves(self) -> list[int]:
        """The number of leaves of each tree."""
        return [] if self.is_linear else [tree.count("leaf=") for tree in self.booster.get_dump()]

    @property
    def version(self) -> str:
        """The library and its version."""
        import xgboost

        return f"XGBoost {xgboost.__version__}"

    def scores(self, inputs: Array) -> Array:
        """Return the probabilities, or the values."""
        import xgboost

        if self.is_linear:
            return np.asarray(self.booster.predict(xgboost.DMatrix(inputs)))
        return np.asarray(self.booster.inplace_predict(inputs, validate_features=False))

    def save(self, path: Path) -> None:
        """Write a JSON file, or a UBJSON file if the suffix says so."""
        self.booster.save_model(path)

    def plain(self) -> "XgBoost":
        """Return a plain sum of trees with the same predictions."""
        import xgboost

        model = json.loads(self.booster.save_raw("json"))
        plain_xgboost(model["learner"], "reg:squarederror" if self.objective in XGBOOST_SUMS else self.objective)
        return XgBoost(xgboost.Booster(model_file=bytearray(json.dumps(model).encode())))


LIBRARIES: tuple[type[LightGbm | XgBoost], ...] = (LightGbm, XgBoost)


def load(path: Path) -> LightGbm | XgBoost:
    """Read a model; the suffix names the library. Raise StageError if it is none of a known library."""
    for library in LIBRARIES:
        if path.suffix in library.suffixes:
            try:
                return library.read(path)
            except Exception as error:  # each library has errors of its own
                why = one_line(error)
                fix = "" if "Fix:" in why else ". Fix: train it for another objective, or provide it as ONNX"
                raise StageError(
                    f"{path}: not a model that can be taken as {library.library} saved it with save_model: {why}{fix}"
                ) from error
    known = "; ".join(f"{', '.join(library.suffixes)} for {library.library}" for library in LIBRARIES)
    raise StageError(f"{path}: the suffix names the library: {known}. Fix: save it with the booster's save_model")
